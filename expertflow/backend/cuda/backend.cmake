# ef_backend_cuda: the CUDA backend, or a folder that says at run time that there is none.
if(EF_WITH_CUDA)
  # Kernels know no type of the engine and take none of its flags. No contraction, as everywhere: where a product and a
  # sum are to be one rounding, the source says fmaf.
  file(GLOB ef_cuda_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/backend/cuda/device/*.cu)
  add_library(ef_cuda_kernels STATIC ${ef_cuda_kernels})
  set_target_properties(ef_cuda_kernels PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
  target_compile_options(ef_cuda_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false --extended-lambda -lineinfo -Xcompiler=-Wall>)
  if(EF_WERROR)
    target_compile_options(ef_cuda_kernels PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_link_libraries(ef_cuda_kernels PUBLIC CUDA::cudart_static)
  file(GLOB ef_cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/backend/cuda/*.cpp)
  add_library(ef_backend_cuda STATIC ${ef_cuda_sources})
  target_link_libraries(ef_backend_cuda PUBLIC ef_backend PRIVATE ef_cuda_kernels)
else()
  add_library(ef_backend_cuda STATIC ${CMAKE_CURRENT_SOURCE_DIR}/backend/no_cuda/no_cuda.cpp)
  target_link_libraries(ef_backend_cuda PUBLIC ef_backend)
endif()

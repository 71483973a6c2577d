# The CPU backend: reference ops, and one file per instruction set compiled with its own flags.
file(GLOB ef_cpu_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/*.cpp)
add_library(ef_backend_cpu STATIC ${ef_cpu_sources})
target_link_libraries(ef_backend_cpu PUBLIC ef_backend)
# Sanitizers make ten times as much of the unrolled loops, and optimising that takes minutes a file.
if(NOT EF_SANITIZE)
  target_compile_options(ef_backend_cpu PRIVATE -O3)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_compile_definitions(ef_backend_cpu PRIVATE EF_CPU_X86)
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/kernels_avx2.cpp
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/kernels_avx2_vnni.cpp
    PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavxvnni")
  # GCC 12 takes the undefined operands inside its own avx512fintrin.h for uninitialised variables (its bug 105593).
  set(ef_avx512 "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx2;-mfma;-mf16c;-Wno-uninitialized;-Wno-maybe-uninitialized")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/kernels_avx512.cpp
    PROPERTIES COMPILE_OPTIONS "${ef_avx512}")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/kernels_avx512_vnni.cpp
    PROPERTIES COMPILE_OPTIONS "${ef_avx512};-mavx512vnni")
  set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/backend/cpu/kernels_avx512_bf16.cpp
    PROPERTIES COMPILE_OPTIONS "${ef_avx512};-mavx512vnni;-mavx512bf16")
endif()

# Unpacks an archive into a folder, again only when the archive has changed, as the stamp says, or `unpacked`, which is
# removed before, is gone.
function(ef_unpack archive directory unpacked stamp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
  file(SHA256 ${archive} hash)
  if(EXISTS ${stamp} AND EXISTS ${unpacked})
    file(READ ${stamp} of)
    if(of STREQUAL hash)
      return()
    endif()
  endif()
  message(STATUS "Unpacking ${archive}")
  # What is half unpacked never carries the stamp: it is written last.
  file(REMOVE_RECURSE ${stamp} ${unpacked})
  file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${directory})
  file(WRITE ${stamp} ${hash})
endfunction()

# To a folder of its own.
function(ef_unpack_fixtures archive directory)
  ef_unpack(${archive} ${directory} ${directory} ${directory}/.archive-sha256)
endfunction()

# An archive of one file, beside itself.
function(ef_unpack_beside archive)
  get_filename_component(directory ${archive} DIRECTORY)
  string(REGEX REPLACE "\\.tar\\.xz$" "" unpacked ${archive})
  ef_unpack(${archive} ${directory} ${unpacked} ${unpacked}.archive-sha256)
endfunction()

# Tokenizers, templates, samplers: depends on base alone, so it stands beside the model ladder.
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
find_path(UTF8PROC_INCLUDE utf8proc.h REQUIRED)
find_library(UTF8PROC_LIB utf8proc REQUIRED)
ef_layer(text DEPS ef_base LIBS PkgConfig::PCRE2 ${UTF8PROC_LIB})
# Loops over the whole vocabulary for every token.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/text/sampler.cpp PROPERTIES COMPILE_OPTIONS -O3)

// Preloaded under llama.cpp: its CPU backend has no extra buffer types then, so weights stay in the mapped file.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void* (*Lookup)(void*, const char*);

void* ggml_backend_reg_get_proc_address(void* registry, const char* name) {
  static Lookup real;
  if (!real) {
    void* library = dlopen("libggml-base.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) real = (Lookup)dlsym(library, "ggml_backend_reg_get_proc_address");
    if (!real) {
      fprintf(stderr, "norepack: libggml-base.so is not loaded or lacks ggml_backend_reg_get_proc_address\n");
      abort();
    }
  }
  return strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0 ? NULL : real(registry, name);
}

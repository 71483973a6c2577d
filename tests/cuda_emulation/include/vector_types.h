// CUDA's vector types, with its alignments.
#pragma once

#define EF_VECTOR_TYPES(name, element, align2, align4)                                    \
  struct name##1 {                                                                        \
    element x;                                                                            \
  };                                                                                      \
  struct alignas(align2) name##2 {                                                        \
    element x, y;                                                                         \
  };                                                                                      \
  struct name##3 {                                                                        \
    element x, y, z;                                                                      \
  };                                                                                      \
  struct alignas(align4) name##4 {                                                        \
    element x, y, z, w;                                                                   \
  };                                                                                      \
  constexpr name##1 make_##name##1(element x) { return {x}; }                             \
  constexpr name##2 make_##name##2(element x, element y) { return {x, y}; }               \
  constexpr name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; } \
  constexpr name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

EF_VECTOR_TYPES(char, signed char, 2, 4)
EF_VECTOR_TYPES(uchar, unsigned char, 2, 4)
EF_VECTOR_TYPES(short, short, 4, 8)
EF_VECTOR_TYPES(ushort, unsigned short, 4, 8)
EF_VECTOR_TYPES(int, int, 8, 16)
EF_VECTOR_TYPES(uint, unsigned int, 8, 16)
EF_VECTOR_TYPES(long, long, 16, 16)
EF_VECTOR_TYPES(ulong, unsigned long, 16, 16)
EF_VECTOR_TYPES(longlong, long long, 16, 16)
EF_VECTOR_TYPES(ulonglong, unsigned long long, 16, 16)
EF_VECTOR_TYPES(float, float, 8, 16)
EF_VECTOR_TYPES(double, double, 16, 16)
#undef EF_VECTOR_TYPES

struct dim3 {
  unsigned int x = 1, y = 1, z = 1;
  constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

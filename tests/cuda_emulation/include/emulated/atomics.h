// Atomics: all threads of the emulated device run on one thread of the host, one launch at a time.
#pragma once

namespace ef::emulated {

template <class T, class F>
T exchange_by(T* at, F next) {
  const T before = *at;
  *at = next(before);
  return before;
}

}  // namespace ef::emulated

template <class T>
T atomicAdd(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return T(old + v); });
}
template <class T>
T atomicSub(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return T(old - v); });
}
template <class T>
T atomicExch(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T) { return v; });
}
template <class T>
T atomicMin(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return v < old ? v : old; });
}
template <class T>
T atomicMax(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return v > old ? v : old; });
}
template <class T>
T atomicAnd(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return T(old & v); });
}
template <class T>
T atomicOr(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return T(old | v); });
}
template <class T>
T atomicXor(T* at, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return T(old ^ v); });
}
template <class T>
T atomicCAS(T* at, T expected, T v) {
  return ef::emulated::exchange_by(at, [=](T old) { return old == expected ? v : old; });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  return ef::emulated::exchange_by(at, [=](unsigned old) { return old >= last ? 0u : old + 1; });
}
inline unsigned atomicDec(unsigned* at, unsigned last) {
  return ef::emulated::exchange_by(at, [=](unsigned old) { return old == 0 || old > last ? last : old - 1; });
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

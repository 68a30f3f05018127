/* What CUDA C++ declares and the kernel's sources use. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cmath>
#include <type_traits>

#include "emulator.h"
#include "warp.h"

using std::signbit;

#define __CUDACC__
#define __CUDA_ARCH__ 900  // the sources' device side
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __launch_bounds__(...)
#define __grid_constant__

/* Read where they are used: fibers change. */
struct ThreadIndex {
  struct {
    operator unsigned() const { return static_cast<unsigned>(emulator::self()); }
  } x;
};
struct BlockIndex {
  struct {
    operator unsigned() const { return static_cast<unsigned>(emulator::current_cta().number); }
  } x;
};
struct GridSize {
  struct {
    operator unsigned() const { return static_cast<unsigned>(emulator::current_cta().grid); }
  } x;
};
inline constexpr ThreadIndex threadIdx{};
inline constexpr BlockIndex blockIdx{};
inline constexpr GridSize gridDim{};

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

template <typename T>
inline T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }

inline float __uint_as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __fmul_rn(float x, float y) { return x * y; }
template <typename T>
inline T __ldg(const T* p) {
  return *p;
}

/* Masks name all lanes everywhere. */
template <typename T>
inline T __shfl_sync(unsigned, T value, int lane) {
  return emulator::shuffle(value, lane, [](int, int from) { return from; });
}
template <typename T>
inline T __shfl_xor_sync(unsigned, T value, int bits) {
  return emulator::shuffle(value, bits, [](int lane, int flipped) { return lane ^ flipped; });
}
template <typename T>
inline T __shfl_up_sync(unsigned, T value, int distance) {
  return emulator::shuffle(value, distance, [](int lane, int up) { return lane < up ? lane : lane - up; });
}
inline uint32_t __ballot_sync(unsigned, bool value) { return emulator::vote(value); }
inline bool __any_sync(unsigned, bool value) { return emulator::vote(value) != 0; }
inline unsigned __reduce_add_sync(unsigned, unsigned value) { return emulator::sum(value); }
inline int __reduce_add_sync(unsigned, int value) {
  return static_cast<int>(emulator::sum(static_cast<uint32_t>(value)));
}
inline void __syncwarp() { emulator::sync_warp(); }
inline void __syncthreads() { emulator::named_barrier(0, emulator::current_cta().threads, true); }

inline void __threadfence_system() {}

/* Not instrumented: their load and store are one. */
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) inline T atomicAdd(T* p, T value) {
  emulator::atomic_access(p, sizeof *p);
  const T before = *p;
  *p += value;
  return before;
}
template <typename T>
__attribute__((noinline, no_sanitize("thread"))) inline T atomicMax(T* p, T value) {
  emulator::atomic_access(p, sizeof *p);
  const T before = *p;
  *p = before < value ? value : before;
  return before;
}

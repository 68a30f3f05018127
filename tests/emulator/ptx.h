/* Stands in for kernel/cuda/ptx.cuh: the same functions, without PTX. */
#pragma once

#include "cuda.h"
#include "numbers.h"

namespace kdtree {

inline uint32_t lane_id() { return threadIdx.x % 32; }
template <typename T>
inline T anew(T x) {
  return x;
}
template <int registers>
inline void give_registers() {}
template <int registers>
inline void take_registers() {}
inline void launch_dependents() {}
inline void wait_for_dependency() {}

inline uint64_t global_time() {
  static uint64_t time = 0;
  return time += 32;
}
inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }
inline const void* shuffle(const void* p, int lane) { return __shfl_sync(~0u, p, lane); }
inline bool elect() { return emulator::elect(); }

inline uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const unsigned char*>(p) - emulator::shared_memory();
  return static_cast<uint32_t>(offset) + emulator::kSharedAddress;
}
inline unsigned char* shared_pointer(uint32_t address) {
  return emulator::shared_memory() + (address - emulator::kSharedAddress);
}

inline void mbarrier_init(uint32_t barrier, int arrivals) { emulator::mbarrier_init(barrier, arrivals); }
/* A phase more than in PTX: who tells or waits says which one it means. */
inline void mbarrier_expect(uint32_t barrier, uint32_t bytes, int phase) {
  emulator::mbarrier_expect(barrier, bytes, phase);
}
inline void mbarrier_arrive(uint32_t barrier, int phase) { emulator::mbarrier_arrive(barrier, phase); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity, int phase) {
  emulator::mbarrier_wait(barrier, parity, phase);
}
inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bulk(to, from, bytes, barrier);
}
inline void prefetch_line(const void* at) { *static_cast<const volatile char*>(at); }
inline void fence_stores_before_bulk_copies() { emulator::proxy_fence(); }

template <int words>
inline void load_shared(uint32_t (&r)[words], uint32_t from) {
  if (from % (words * 4) != 0) emulator::fail("a load of %d words is not aligned", words);
  emulator::access(shared_pointer(from), sizeof r, false);
  memcpy(r, shared_pointer(from), sizeof r);
}
inline void store_shared(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if (to % 16 != 0) emulator::fail("a store of 4 words is not aligned");
  const uint32_t words[4] = {a, b, c, d};
  emulator::access(shared_pointer(to), sizeof words, true);
  memcpy(shared_pointer(to), words, sizeof words);
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  emulator::load_matrices(r, shared_pointer(address), false);
}
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  emulator::load_matrices(r, shared_pointer(address), true);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::multiply(c, a, b0, b1, emulator::bf16_value);
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::multiply(c, a, b0, b1, emulator::f16_value);
}

inline float exp2_fast(float x) { return emulator::flushed(exp2f(x)); }
inline float reciprocal_fast(float x) { return 1.f / emulator::flushed(x); }
inline uint32_t pack_bf16(float low, float high) {
  return emulator::bf16_bits(low) | emulator::bf16_bits(high) << 16;
}
inline uint32_t pack_f16(float low, float high) { return emulator::f16_bits(low) | emulator::f16_bits(high) << 16; }
inline float2 unpack_f16(uint32_t pair) {
  return {emulator::f16_value(pair & 0xffff), emulator::f16_value(pair >> 16)};
}
inline float2 unpack_bf16(uint32_t pair) {
  return {emulator::bf16_value(pair & 0xffff), emulator::bf16_value(pair >> 16)};
}
inline bool has_nonfinite(uint32_t pair) {
  return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}
template <bool e4m3>
inline uint32_t f16_of_fp8(uint16_t pair) {
  return pack_f16(emulator::fp8_value(pair & 0xff, e4m3), emulator::fp8_value(pair >> 8, e4m3));
}

}  // namespace kdtree

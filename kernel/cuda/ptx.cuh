/* The instructions that C++ has no name for. All of them exist on sm_90 and sm_120 alike. */
#pragma once

#include <stdint.h>

namespace kdtree {

/* Where this thread is in its CTA. */
struct Thread {
  uint32_t lane, warp;
};

/* Reads threadIdx.x anew at each call: what is computed from it is then computed where it is used. The compiler would
 * otherwise keep a dozen such addresses in registers all through the step loop, which has none to spare. */
__device__ __forceinline__ Thread this_thread() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return {t % 32, t / 32};
}

/* The same number, which the compiler takes for another one, to the same end. */
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ bool first_thread() {
  const auto [lane, warp] = this_thread();
  return lane == 0 && warp == 0;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Copies 16 bytes to shared memory; with !valid writes zeros and reads nothing. */
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

/* Copies one 4- or 8-byte element to shared memory. */
template <int bytes>
__device__ __forceinline__ void copy_element_async(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}

/* Waits for this thread's copies. */
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/* c[16x8] += a[16x16] b[16x8], bf16 in, float32 accumulate. Lane l holds, with g = l / 4 and i = l % 4, of c the
 * elements (g, 2i), (g, 2i+1), (g+8, 2i), (g+8, 2i+1). */
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Two floats rounded to nearest even bf16, `low` in the low half. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

}  // namespace kdtree

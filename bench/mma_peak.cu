// The rate of mma.sync.m16n8k16 (bf16 in, float32 sums) that this card sustains: operands in registers, random, so that
// power is drawn as by real work; eight independent accumulators a warp, 16 warps an SM.
// Prints, for each of RUNS: TFLOP/s, the SM clock in MHz that it ran at, and its milliseconds.
// Build: nvcc -std=c++17 -O3 -gencode arch=compute_XX,code=sm_XX mma_peak.cu
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kThreads = 256, kBlocksPerSm = 2, kAccumulators = 8, kOperands = 4, kRuns = 9;
constexpr int kSteps = 200000;
constexpr double kFlopsPerMma = 2.0 * 16 * 8 * 16;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "kdtree: mma_peak: %s. Fix: see nvidia-smi\n", cudaGetErrorString(status));
  std::exit(69);
}

// Two bf16 of either sign between 0.5 and 2, from a counter.
__device__ uint32_t random_pair(uint32_t seed) {
  seed ^= seed >> 16;
  seed *= 0x7feb352dU;
  seed ^= seed >> 15;
  seed *= 0x846ca68bU;
  seed ^= seed >> 16;
  return (seed & 0x80ff80ffU) | 0x3f003f00U;
}

__global__ void __launch_bounds__(kThreads) multiply(int steps, float* sums, uint64_t* clocks, uint64_t* nanoseconds) {
  uint32_t a[kOperands][4], b[kOperands][2];
  float c[kAccumulators][4] = {};
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  for (int i = 0; i < kOperands; ++i) {
    for (int j = 0; j < 4; ++j) a[i][j] = random_pair(thread * 64 + i * 6 + j);
    for (int j = 0; j < 2; ++j) b[i][j] = random_pair(thread * 64 + i * 6 + 4 + j);
  }
  uint64_t ns0, ns1;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns0));
  const uint64_t clock0 = clock64();
  for (int step = 0; step < steps; ++step) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) {
      const uint32_t* x = a[i % kOperands];
      const uint32_t* y = b[i / 2];
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
          : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    }
  }
  const uint64_t clock1 = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns1));
  float sum = 0;
  for (int i = 0; i < kAccumulators; ++i)
    for (int j = 0; j < 4; ++j) sum += c[i][j];
  sums[thread] = sum;
  if (thread == 0) *clocks = clock1 - clock0, *nanoseconds = ns1 - ns0;
}

}  // namespace

int main() {
  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const int blocks = sms * kBlocksPerSm;
  float* sums;
  uint64_t *taken, host[2];
  check(cudaMalloc(&sums, sizeof(float) * blocks * kThreads));
  check(cudaMalloc(&taken, sizeof host));
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (int run = 0; run < kRuns; ++run) {
    check(cudaEventRecord(begin));
    multiply<<<blocks, kThreads>>>(kSteps, sums, taken, taken + 1);
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaMemcpy(host, taken, sizeof host, cudaMemcpyDeviceToHost));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    const double mmas = double(blocks) * (kThreads / 32) * kAccumulators * kSteps;
    std::printf("%.1f %.0f %.2f\n", mmas * kFlopsPerMma / ms / 1e9, host[0] * 1e3 / host[1], ms);
  }
}

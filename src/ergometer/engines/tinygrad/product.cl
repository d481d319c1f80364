/* The product of two matrices, for OpenCL and CUDA: each group of threads makes one tile of it.

   Before this come the constants of the product (sizes M, N, K; tiles TM, TN, TK; RM and RN for each of the THREADS)
   and LEFT, RIGHT and OUT: where an element is found. K is cut into PARTS of DEPTH, each with a result of its own. */

#ifdef __OPENCL_VERSION__
#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define LOCAL4 __local float4
#define ALIGNED __attribute__((aligned(16)))
#define FUNCTION
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define THREAD get_local_id(0)
#define GROUP_N get_group_id(0)
#define GROUP_M get_group_id(1)
#define GROUP_Z get_group_id(2)
#else
#define KERNEL extern "C" __global__
#define GLOBAL
#define LOCAL __shared__
#define LOCAL4 float4
#define ALIGNED __align__(16)
#define FUNCTION __device__ __forceinline__
#define SYNC __syncthreads()
#define THREAD threadIdx.x
#define GROUP_N blockIdx.x
#define GROUP_M blockIdx.y
#define GROUP_Z blockIdx.z
#endif
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)
#define LEFTS (TM * TK / THREADS)
#define RIGHTS (TN * TK / THREADS)
/* Which element of a tile a thread brings: neighbours in memory go to neighbouring threads. */
#define LEFT_M(i) (LEFT_ALONG_K ? (id + (i) * THREADS) / TK : (id + (i) * THREADS) % TM)
#define LEFT_K(i) (LEFT_ALONG_K ? (id + (i) * THREADS) % TK : (id + (i) * THREADS) / TM)
#define RIGHT_N(i) (RIGHT_ALONG_K ? (id + (i) * THREADS) / TK : (id + (i) * THREADS) % TN)
#define RIGHT_K(i) (RIGHT_ALONG_K ? (id + (i) * THREADS) % TK : (id + (i) * THREADS) / TN)
/* A thread's rows and columns lie in runs of four, and the runs far apart: no two threads ask for the same bank. */
#define ROW(i) ((i) / 4 * (TM * 4 / RM) + ty * 4 + (i) % 4)
#define COLUMN(j) ((j) / 4 * (TN * 4 / RN) + tx * 4 + (j) % 4)
#define FETCH(k) \
  EACH(i, LEFTS) ra[i] = left(a, m0 + LEFT_M(i), (k) + LEFT_K(i), end); \
  EACH(i, RIGHTS) rb[i] = right(b, (k) + RIGHT_K(i), n0 + RIGHT_N(i), end);
#define KEEP(s) \
  EACH(i, LEFTS) as[s][LEFT_K(i)][LEFT_M(i)] = ra[i]; \
  EACH(i, RIGHTS) bs[s][RIGHT_K(i)][RIGHT_N(i)] = rb[i];

FUNCTION float left(GLOBAL const float* from, int m, int k, int end) {
  int at = 0, ok = m < M && k < end;
  LEFT
  return ok ? from[at] : 0.0f;
}

FUNCTION float right(GLOBAL const float* from, int k, int n, int end) {
  int at = 0, ok = n < N && k < end;
  RIGHT
  return ok ? from[at] : 0.0f;
}

#if THREADS == 1 /* a CPU: no one to share with, wide registers, and a tile that its caches hold */
#define BLOCK_M 8
#define BLOCK_N 32
KERNEL void NAME(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b) {
  float as[TK][TM], sums[TM][TN] __attribute__((aligned(64))), bs[TK][TN] __attribute__((aligned(64)));
  const int m0 = GROUP_M * TM, n0 = GROUP_N * TN, z = GROUP_Z;
  const int first = z % PARTS * DEPTH, end = first + DEPTH < K ? first + DEPTH : K;
  a += (long)(z / PARTS) * M * K;
  b += (long)(z / PARTS) * K * N;
  out += (long)z * M * N;
  for (int i = 0; i < TM; i++) for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;
  for (int k = first; k < end; k += TK) {
    for (int i = 0; i < TM; i++) for (int kk = 0; kk < TK; kk++) as[kk][i] = left(a, m0 + i, k + kk, end);
    for (int kk = 0; kk < TK; kk++) for (int j = 0; j < TN; j++) bs[kk][j] = right(b, k + kk, n0 + j, end);
    for (int i0 = 0; i0 < TM; i0 += BLOCK_M) for (int j0 = 0; j0 < TN; j0 += BLOCK_N) {
      float16 s[BLOCK_M][2];
      EACH(i, BLOCK_M) EACH(h, 2) s[i][h] = *(float16*)&sums[i0 + i][j0 + h * 16];
      for (int kk = 0; kk < TK; kk++) {
        const float16 low = *(float16*)&bs[kk][j0], high = *(float16*)&bs[kk][j0 + 16];
        EACH(i, BLOCK_M) { s[i][0] += as[kk][i0 + i] * low; s[i][1] += as[kk][i0 + i] * high; }
      }
      EACH(i, BLOCK_M) EACH(h, 2) *(float16*)&sums[i0 + i][j0 + h * 16] = s[i][h];
    }
  }
  for (int i = 0; i < TM; i++) for (int j = 0; j < TN; j++) {
    const int m = m0 + i, n = n0 + j;
    if (m < M && n < N) out[OUT] = sums[i][j];
  }
}
#else
KERNEL void NAME(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b) {
  LOCAL ALIGNED float as[2][TK][TM + 4];
  LOCAL ALIGNED float bs[2][TK][TN + 4];
  const int id = THREAD, tx = id % (TN / RN), ty = id / (TN / RN);
  const int m0 = GROUP_M * TM, n0 = GROUP_N * TN, z = GROUP_Z;
  const int first = z % PARTS * DEPTH, end = first + DEPTH < K ? first + DEPTH : K;
  float ra[LEFTS], rb[RIGHTS], sums[RM][RN];
  a += (long)(z / PARTS) * M * K;
  b += (long)(z / PARTS) * K * N;
  out += (long)z * M * N;
  EACH(i, RM) EACH(j, RN) sums[i][j] = 0.0f;
  FETCH(first)
  KEEP(0)
  SYNC;
  for (int k = first, s = 0; k < end; k += TK, s = 1 - s) {
    if (k + TK < end) { FETCH(k + TK) }
    EACH(kk, TK) {
      float x[RM], y[RN];
      EACH(i, RM / 4) {
        float4 v = *(LOCAL4*)&as[s][kk][ROW(i * 4)];
        x[i * 4] = v.x; x[i * 4 + 1] = v.y; x[i * 4 + 2] = v.z; x[i * 4 + 3] = v.w;
      }
      EACH(j, RN / 4) {
        float4 v = *(LOCAL4*)&bs[s][kk][COLUMN(j * 4)];
        y[j * 4] = v.x; y[j * 4 + 1] = v.y; y[j * 4 + 2] = v.z; y[j * 4 + 3] = v.w;
      }
      EACH(i, RM) EACH(j, RN) sums[i][j] += x[i] * y[j];
    }
    if (k + TK < end) { KEEP(1 - s) }
    SYNC;
  }
  EACH(i, RM) EACH(j, RN) {
    const int m = m0 + ROW(i), n = n0 + COLUMN(j);
    if (m < M && n < N) out[OUT] = sums[i][j];
  }
}
#endif

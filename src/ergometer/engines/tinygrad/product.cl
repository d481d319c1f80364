/* The product of two matrices, for OpenCL and CUDA: each group of threads makes one tile of it.

   Before this come the constants of the product (sizes M, N, K; tiles TM, TN, TK; RM and RN for each of the THREADS)
   and LEFT, RIGHT and OUT: where an element is found. K is cut into PARTS of DEPTH (whole tiles), each with a result of
   its own. TF32: the tiles are multiplied by units of NVIDIA's GPUs that round what they multiply to 10 bits. */

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
#define LEFT_M(i) (LEFT_ALONG_K ? id / TK + (i) * (THREADS / TK) : id % TM)
#define LEFT_K(i) (LEFT_ALONG_K ? id % TK : id / TM + (i) * (THREADS / TM))
#define RIGHT_N(i) (RIGHT_ALONG_K ? id / TK + (i) * (THREADS / TK) : id % TN)
#define RIGHT_K(i) (RIGHT_ALONG_K ? id % TK : id / TN + (i) * (THREADS / TN))
/* What k or n is divided by often divides the tile too: then the quotient is the same for all threads, and known from
   the first k of the tile (k0), or the first n of those that come together (n0). */
#define OF_K(size) ((size) % TK ? k : k0) / (size)
#if THREADS > 1
#define OF_N(size) ((size) % (THREADS / TK) ? n : n0) / (size)
#else
#define OF_N(size) n / (size)
#endif
#define FETCH(k) \
  EACH(i, LEFTS) ra[i] = left(a, m0 + LEFT_M(i), (k) + LEFT_K(i), end); \
  EACH(i, RIGHTS) rb[i] = right(b, (k) + RIGHT_K(i), n0 + RIGHT_N(i), k, n0 + (i) * (THREADS / TK), end);
#define KEEP(s) \
  EACH(i, LEFTS) as[s][LEFT_K(i)][LEFT_M(i)] = KEPT(ra[i]); \
  EACH(i, RIGHTS) bs[s][RIGHT_K(i)][RIGHT_N(i)] = KEPT(rb[i]);

FUNCTION float left(GLOBAL const float* from, int m, int k, int end) {
  int at = 0, ok = (M % TM == 0 || m < M) && (K % TK == 0 || k < end);
  LEFT
  return ok ? from[at] : 0.0f;
}

FUNCTION float right(GLOBAL const float* from, int k, int n, int k0, int n0, int end) {
  int at = 0, ok = (N % TN == 0 || n < N) && (K % TK == 0 || k < end);
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
    for (int kk = 0; kk < TK; kk++) for (int j = 0; j < TN; j++) bs[kk][j] = right(b, k + kk, n0 + j, k, n0, end);
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
/* Of a thread's sums, the row and column of one. Rows of tiles are padded so that no two threads read the same bank. */
#if TF32
#define ELEMENT unsigned
#define PAD 8
#define KEPT(x) rounded(x)
#define WM (TM > 32 && TN > 32 ? 64 : TM > 32 || TN > 32 ? 32 : 16) /* a warp makes WM x WN, 16 x 8 at a time */
#define WN 32
#define ROW(c) (wm + (c) / 4 / (WN / 8) * 16 + (c) % 4 / 2 * 8 + high)
#define COLUMN(c) (wn + (c) / 4 % (WN / 8) * 8 + low * 2 + (c) % 2)
FUNCTION unsigned rounded(float x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
#else
#define ELEMENT float
#define PAD 4
#define KEPT(x) (x)
#define ROW(c) ((c) / RN / 4 * (TM * 4 / RM) + ty * 4 + (c) / RN % 4)
#define COLUMN(c) ((c) % RN / 4 * (TN * 4 / RN) + tx * 4 + (c) % RN % 4)
#endif
KERNEL void NAME(GLOBAL float* out, GLOBAL const float* a, GLOBAL const float* b) {
  LOCAL ALIGNED ELEMENT as[2][TK][TM + PAD];
  LOCAL ALIGNED ELEMENT bs[2][TK][TN + PAD];
  const int id = THREAD, m0 = GROUP_M * TM, n0 = GROUP_N * TN, z = GROUP_Z;
#if TF32
  const int low = id % 4, high = id % 32 / 4, wm = id / 32 / (TN / WN) * WM, wn = id / 32 % (TN / WN) * WN;
#else
  const int tx = id % (TN / RN), ty = id / (TN / RN);
#endif
  const int first = z % PARTS * DEPTH, end = first + DEPTH < K ? first + DEPTH : K;
  float ra[LEFTS], rb[RIGHTS], sums[RM * RN];
  a += (long)(z / PARTS) * M * K;
  b += (long)(z / PARTS) * K * N;
  out += (long)z * M * N;
  EACH(c, RM * RN) sums[c] = 0.0f;
  FETCH(first)
  KEEP(0)
  SYNC;
  for (int k = first, s = 0; k < end; k += TK, s = 1 - s) {
    if (k + TK < end) { FETCH(k + TK) }
#if TF32
    EACH(kk, TK / 8) {
      unsigned x[WM / 16][4], y[WN / 8][2];
      EACH(i, WM / 16) EACH(h, 4) x[i][h] = as[s][kk * 8 + h / 2 * 4 + low][wm + i * 16 + h % 2 * 8 + high];
      EACH(j, WN / 8) EACH(h, 2) y[j][h] = bs[s][kk * 8 + h * 4 + low][wn + j * 8 + high];
      EACH(i, WM / 16) EACH(j, WN / 8) {
        const int c = (i * (WN / 8) + j) * 4;
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[c]), "+f"(sums[c + 1]), "+f"(sums[c + 2]), "+f"(sums[c + 3])
                     : "r"(x[i][0]), "r"(x[i][1]), "r"(x[i][2]), "r"(x[i][3]), "r"(y[j][0]), "r"(y[j][1]));
      }
    }
#else
    EACH(kk, TK) {
      float x[RM], y[RN];
      EACH(i, RM / 4) {
        float4 v = *(LOCAL4*)&as[s][kk][ROW(i * 4 * RN)];
        x[i * 4] = v.x; x[i * 4 + 1] = v.y; x[i * 4 + 2] = v.z; x[i * 4 + 3] = v.w;
      }
      EACH(j, RN / 4) {
        float4 v = *(LOCAL4*)&bs[s][kk][COLUMN(j * 4)];
        y[j * 4] = v.x; y[j * 4 + 1] = v.y; y[j * 4 + 2] = v.z; y[j * 4 + 3] = v.w;
      }
      EACH(i, RM) EACH(j, RN) sums[i * RN + j] += x[i] * y[j];
    }
#endif
    if (k + TK < end) { KEEP(1 - s) }
    SYNC;
  }
  EACH(c, RM * RN) {
    const int m = m0 + ROW(c), n = n0 + COLUMN(c);
    if (m < M && n < N) out[OUT] = sums[c];
  }
}
#endif

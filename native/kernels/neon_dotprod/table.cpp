// The AArch64 table for processors with dot products: every operation has its own kernel here, none falls back to
// another table.
#include "table.h"

namespace treadle {

using namespace neon_dotprod;

extern const KernelTable kNeonDotprodKernels;

constinit const KernelTable kNeonDotprodKernels = make_table("neon_dotprod", {.q4_0 = matmul_q4_0,
                                                                              .q4_1 = matmul_q4_1,
                                                                              .q5_0 = matmul_q5_0,
                                                                              .q5_1 = matmul_q5_1,
                                                                              .q8_0 = matmul_q8_0,
                                                                              .iq4_nl = matmul_iq4_nl,
                                                                              .mxfp4 = matmul_mxfp4,
                                                                              .q2_k = matmul_q2_k,
                                                                              .q3_k = matmul_q3_k,
                                                                              .q4_k = matmul_q4_k,
                                                                              .q5_k = matmul_q5_k,
                                                                              .q6_k = matmul_q6_k,
                                                                              .iq4_xs = matmul_iq4_xs,
                                                                              .tq2_0 = matmul_tq2_0,
                                                                              .peak = peak_int8});

}  // namespace treadle

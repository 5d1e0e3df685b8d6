// Facts about the weight formats: block sizes of files and panels, and the activations a format multiplies with.
#include "formats.h"

#include "treadle/kernels.h"

namespace treadle {

namespace {

struct FormatFacts {
    int64_t block_columns;
    int64_t row_block_bytes;
    int64_t panel_block_bytes;
    ActFormat act_format;
};

FormatFacts facts_of(uint32_t weight_format) {
    switch (weight_format) {
        case kF32:
            return {1, 4, sizeof(PanelF32), kActF32};
        case kF16:
        case kBF16:
            return {1, 2, sizeof(PanelF16), kActF32};
        case kQ4_0:
            return {32, 18, sizeof(PanelQ4_0), kActQ8};
        case kQ4_1:
            return {32, 20, sizeof(PanelQ4_1), kActQ8};
        case kQ5_0:
            return {32, 22, sizeof(PanelQ5_0), kActQ8};
        case kQ5_1:
            return {32, 24, sizeof(PanelQ5_1), kActQ8};
        case kQ8_0:
            return {32, 34, sizeof(PanelQ8_0), kActQ8};
        case kIQ4_NL:
            return {32, 18, sizeof(PanelIQ4_NL), kActQ8};
        case kMXFP4:
            return {32, 17, sizeof(PanelMXFP4), kActQ8};
        case kQ2_K:
            return {256, 84, sizeof(PanelQ2_K), kActQ8};
        case kQ3_K:
            return {256, 110, sizeof(PanelQ3_K), kActQ8};
        case kQ4_K:
            return {256, 144, sizeof(PanelQ4_K), kActQ8};
        case kQ5_K:
            return {256, 176, sizeof(PanelQ5_K), kActQ8};
        case kQ6_K:
            return {256, 210, sizeof(PanelQ6_K), kActQ8};
        case kIQ4_XS:
            return {256, 136, sizeof(PanelIQ4_XS), kActQ8};
        case kTQ1_0:
            return {256, 54, sizeof(PanelTQ2_0), kActQ8};
        case kTQ2_0:
            return {256, 66, sizeof(PanelTQ2_0), kActQ8};
        default:
            return {0, 0, 0, kActF32};
    }
}

// A panel takes exactly the bytes of its 16 rows in the file; TQ1_0 becomes TQ2_0, a fifth larger.
static_assert(sizeof(PanelF32) == 16 * 4 && sizeof(PanelF16) == 16 * 2);
static_assert(sizeof(PanelQ4_0) == 16 * 18 && sizeof(PanelQ4_1) == 16 * 20 && sizeof(PanelQ5_0) == 16 * 22);
static_assert(sizeof(PanelQ5_1) == 16 * 24 && sizeof(PanelQ8_0) == 16 * 34 && sizeof(PanelQ4_K) == 16 * 144);
static_assert(sizeof(PanelQ5_K) == 16 * 176 && sizeof(PanelQ2_K) == 16 * 84);
static_assert(sizeof(PanelIQ4_NL) == 16 * 18 && sizeof(PanelMXFP4) == 16 * 17 && sizeof(PanelTQ2_0) == 16 * 66);
// These have a byte for each scale of six bits, which is 2 and 4 % more.
static_assert(sizeof(PanelIQ4_XS) == 16 * (136 + 2) && sizeof(PanelQ3_K) == 16 * (110 + 4));
// And this one ends with a cache line, which is 1 % more.
static_assert(sizeof(PanelQ6_K) == 16 * (210 + 2));

}  // namespace

ActFormat act_format_of(uint32_t weight_format) { return facts_of(weight_format).act_format; }

int64_t block_columns(uint32_t weight_format) { return facts_of(weight_format).block_columns; }

int64_t row_block_bytes(uint32_t weight_format) { return facts_of(weight_format).row_block_bytes; }

int64_t panel_block_bytes(uint32_t weight_format) { return facts_of(weight_format).panel_block_bytes; }

}  // namespace treadle

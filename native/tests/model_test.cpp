// Whole models with every kernel table this CPU can run, where no Python runs: a prompt and a few greedy tokens must
// give the same logits, bit for bit.
//
//   model_test FILE.gguf...
//
// Prints a fingerprint of the logits for each file and table; exit code 1 if tables differ.
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

#include "treadle/gguf.h"
#include "treadle/runtime.h"

namespace {

using namespace treadle;

constexpr int kPromptTokens = 75;  // three KV blocks, tiles of eight and seven, and enough of them to unpack panels
constexpr int kSteps = 5;

// FNV-1a over the logits of a prompt and of the greedy tokens that follow it.
uint64_t run_model(const GgufFile& file, const char* isa, KvType kv_type) {
    const std::vector<int> cpus = {-1, -1};
    LoadOptions options;
    options.kernels = find_kernels(isa);
    options.cpus = cpus;
    Runtime runtime(Model::load(file, options), cpus, {3}, kPromptTokens, kv_type);
    const int32_t vocab_size = runtime.model().config().vocab_size;
    SamplingParams params;
    params.temperature = 0.0f;
    const Sampler greedy(params, vocab_size);
    const Sampler* const samplers[] = {&greedy};
    const int32_t block_table[] = {1, 2, 0};
    std::vector<float> logits(static_cast<size_t>(vocab_size));
    std::vector<int32_t> tokens;
    for (int i = 0; i < kPromptTokens; ++i) tokens.push_back((7 * i + 1) % vocab_size);
    int32_t position = 0;
    uint64_t fingerprint = 0xcbf29ce484222325;
    for (int step = 0; step < kSteps; ++step) {
        const int32_t query_len = static_cast<int32_t>(tokens.size()), last = query_len - 1;
        StepInput input;
        input.token_ids = tokens.data();
        input.num_tokens = query_len;
        input.query_lens = &query_len;
        input.start_positions = &position;
        input.num_sequences = 1;
        input.block_tables = block_table;
        input.table_width = 3;
        input.logit_rows = &last;
        input.num_logit_rows = 1;
        input.samplers = samplers;
        input.logits = logits.data();
        SampleResult result;
        runtime.step(input, &result);
        for (const float& logit : logits) {
            uint32_t bits;
            memcpy(&bits, &logit, sizeof bits);
            fingerprint = (fingerprint ^ bits) * 0x100000001b3;
        }
        position += query_len;
        tokens = {result.token};
    }
    return fingerprint;
}

bool tables_agree(const char* path, KvType kv_type) {
    const auto file = GgufFile::open(path);
    const uint64_t expected = run_model(*file, "ref", kv_type);
    bool agree = true;
    for (const char* const* isa = runnable_isas(); *isa != nullptr; ++isa) {
        const uint64_t found = run_model(*file, *isa, kv_type);
        printf("%-12s %s, KV %s, fingerprint of logits %016llx%s\n", *isa, path,
               kv_type == KvType::kF16 ? "f16" : "q8_0", static_cast<unsigned long long>(found),
               found == expected ? "" : ", differs from ref");
        agree = agree && found == expected;
    }
    return agree;
}

}  // namespace

int main(int argc, char** argv) {
    bool passed = argc > 1;
    for (int i = 1; i < argc; ++i) {
        try {
            for (const KvType kv_type : {KvType::kF16, KvType::kQ8_0}) {
                passed = tables_agree(argv[i], kv_type) && passed;
            }
        } catch (const std::exception& error) {
            printf("%s: %s\n", argv[i], error.what());
            passed = false;
        }
    }
    return passed ? 0 : 1;
}

// One step of the model for any mix of prompt chunks and single decodes, over a pool of KV blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "treadle/adapter.h"
#include "treadle/model.h"
#include "treadle/sampler.h"
#include "treadle/thread_pool.h"

namespace treadle {

// Rows of one sequence whose states are wanted: what logits are made of, the last layer's output after its norm. Where
// the model has a head, what comes out of it for them.
struct StateSum {
    int64_t first_row = 0;  // token row of the step
    int64_t num_rows = 0;
    double* sum = nullptr;  // [Model::state_size()], the states of the rows, or what the head gives, are added to it
};

// What to compute in one step. Tokens stand sequence after sequence; a sequence's tokens have consecutive positions.
struct StepInput {
    const int32_t* token_ids = nullptr;  // [num_tokens]
    int64_t num_tokens = 0;
    const int32_t* query_lens = nullptr;  // [num_sequences], tokens of this step, their sum is num_tokens
    // [num_sequences], tokens already in the sequence's KV blocks. A model with convolutions goes on only where the
    // last step of the sequence ended, or from the end of a block.
    const int32_t* start_positions = nullptr;
    int64_t num_sequences = 0;
    // [num_sequences][table_width] block ids, of each group of layers; entries past the need or out of every window are
    // not read
    const int32_t* block_tables = nullptr;
    int64_t table_width = 0;
    int64_t group_stride = 0;             // entries from one group's tables to the next one's; 0: all have the same
    const int32_t* logit_rows = nullptr;  // [num_logit_rows] token rows whose next token is wanted, ascending
    int64_t num_logit_rows = 0;
    const Sampler* const* samplers = nullptr;  // [num_logit_rows]
    float* logits = nullptr;                   // [num_logit_rows][vocab_size] or null
    const Adapter* const* adapters = nullptr;  // [num_sequences], null entries for the model as it is; or null
    const StateSum* state_sums = nullptr;      // [num_state_sums] of ascending rows, none in two of them
    int64_t num_state_sums = 0;
};

// KV blocks of the layers that see equally far back.
struct KvGroup {
    int32_t window = 0;  // positions a token sees, or a convolution reads, its own included; 0: all before it
    int32_t num_layers = 0;
    int64_t num_blocks = 0;
    size_t block_bytes = 0;
    // What gives a block's bytes their meaning: type and version of the layout, layers, heads, head_dim, tokens. The
    // same for every kernel table. Blocks of equal layout are interchangeable if the model file is the same, too.
    std::string layout;
};

// Where steps spent their time; seconds and waits have one entry per worker.
struct OperatorTiming {
    std::string name;
    int64_t num_calls = 0;
    uint64_t bytes = 0;       // of weights or KV blocks read by all workers
    uint64_t operations = 0;  // multiplications and additions of all workers
    std::vector<double> busy_seconds;
    std::vector<double> wait_seconds;  // at barriers
};

struct StepTimings {
    int64_t num_steps = 0;
    double seconds = 0.0;  // inside step()
    std::vector<OperatorTiming> operators;
};

class Runtime {
 public:
    // cpus: see ThreadPool. num_blocks KV blocks of kKvBlockTokens positions, of each group or one number for all; at
    // most max_batch_tokens tokens a step.
    Runtime(std::shared_ptr<const Model> model, std::vector<int> cpus, const std::vector<int64_t>& num_blocks,
            int64_t max_batch_tokens, KvType kv_type = KvType::kF16);
    ~Runtime();

    // Runs the step and writes one result per logit row. Throws UsageError for input that does not fit; nothing is
    // computed then.
    void step(const StepInput& input, SampleResult* results);

    // Blocks as plain bytes, for copies outside the pool. Any thread may call these while a step runs, as long as no
    // block of the call is in the step's block tables or in another such call that writes it. Throw UsageError for a
    // group or block out of range.
    void read_kv_block(size_t group, int64_t block, uint8_t* out) const;
    void write_kv_block(size_t group, int64_t block, const uint8_t* data);
    void copy_kv_block(size_t group, int64_t from, int64_t to);
    KvType kv_type() const;
    // Layers that see everything first, then those with a window, then convolutions; only the kinds that the model has.
    const std::vector<KvGroup>& kv_groups() const;

    void set_cpus(std::vector<int> cpus);
    // Whether workers whose CPUs are busy with other programs sit out, as they do at first.
    void set_sitting_out(bool on);

    // Starts timing operators from zero, or stops. Costs nothing while off.
    void set_timing(bool on);
    // What was timed since set_timing(true) or set_cpus(); empty while off.
    StepTimings timings() const;

    int num_threads() const;
    int num_present() const;  // of them, those that do not sit out
    int64_t max_batch_tokens() const;
    const Model& model() const;
    int lock_memory() const;  // 0 or the errno of mlock: the KV pool and the scratch memory

 private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace treadle

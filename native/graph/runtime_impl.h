// The inside of Runtime: scratch memory and the SPMD body of a step.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "activations.h"
#include "adapted_rows.h"
#include "attention.h"
#include "block_rows.h"
#include "expert_dispatch.h"
#include "ready_panels.h"
#include "step_timers.h"
#include "treadle/runtime.h"

namespace treadle {

class Runtime::Impl {
 public:
    Impl(std::shared_ptr<const Model> model, std::vector<int> cpus, const std::vector<int64_t>& num_blocks,
         int64_t max_batch_tokens, KvType kv_type);

    void step(const StepInput& input, SampleResult* results);
    void set_cpus(std::vector<int> cpus);
    void set_sitting_out(bool on);
    void set_timing(bool on);
    StepTimings timings();

    const Model& model() const { return *model_; }
    const ThreadPool& pool() const { return pool_; }
    const KvPool& kv() const { return kv_; }
    int64_t max_batch_tokens() const { return max_batch_tokens_; }
    const PageBuffer& scratch() const { return scratch_; }

 private:
    void check(const StepInput& input) const;
    void check_sequences(const StepInput& input) const;
    void check_blocks(const StepInput& input, int64_t sequence, int64_t end) const;
    void check_logit_rows(const StepInput& input) const;
    void check_state_sums(const StepInput& input) const;
    void carve_scratch();
    void list_tokens();
    void list_kept_rows();

    // The body, phase by phase. Each phase ends at a barrier.
    void forward(int worker);
    void find_copy(int worker);
    void embed(int worker);
    void project_and_store(int worker, int32_t layer);
    void project_convolution(int worker, const LayerWeights& layer);
    void convolve(int worker, int32_t layer);
    void convolve_columns(int32_t layer, int32_t sequence, int64_t first_token, int64_t first_column);
    void keep_rows(int worker, int64_t attended_columns);
    void attention_output(int worker, const LayerWeights& layer);
    void feed_forward_block(int worker, int32_t layer);
    void multiply_gated(int worker, const LayerWeights& layer);
    void multiply_ungated(int worker, int32_t layer);
    void experts_block(int worker, const LayerWeights& layer);
    void add_states(int worker);
    void run_head(int worker);
    void pool_states(int worker);
    void head_inner(int worker);
    void sum_states(int worker, const StateSum& rows, double* sum);
    void logits_and_samples(int worker);

    // Quantises the inputs of the consumers, one row per token: row(index, worker scratch) returns the row. With few
    // tokens every worker does all rows for itself, which is cheaper than a barrier.
    template <typename Row>
    void quantise(int worker, int64_t num_rows, int64_t columns, std::initializer_list<const Matrix*> consumers,
                  Row&& row);
    // Writes a row of so many columns into its place in a tile, in every format that the consumers want.
    void quantise_row(const ActTile& tile, int32_t token, const float* values, int64_t num_columns,
                      std::initializer_list<const Matrix*> consumers) const;
    const float* normalised(int worker, const float* row, const Norm& norm);
    void normalise(const float* row, const Norm& norm, float* out) const;
    void normalise_residual(int worker, const Norm& norm);
    const Activations& activations(int worker, int64_t num_rows) const;
    const float* kept(int64_t row) const;
    void finish_logits(float* logits, int64_t count) const;
    // Norm and rotation of queries and keys; keys and values go into the KV blocks.
    void finish_heads_and_store(int worker, int32_t layer);
    void normalise_projections(int worker, const LayerWeights& layer);
    float query_scale(int64_t token) const;
    void finish_head(float* head, const float* norm, int64_t token, int32_t rope) const;
    void rotate(float* head, int64_t token, int32_t rope) const;
    void rotary_angles(int64_t token);

    // Products of all panels of the matrices with the inputs. emit(matrix, first_row, num_rows,
    // first_token, num_tokens, out) receives out[token * 16 + row] of each panel and tile.
    template <typename Emit>
    void multiply(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_tokens,
                  const Activations& inputs, Emit&& emit);
    // The same with what quantise() has written.
    template <typename Emit>
    void multiply(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_tokens, Emit&& emit) {
        multiply(worker, matrices, num_tokens, activations(worker, num_tokens), emit);
    }
    template <typename Emit>
    void multiply_panels(int worker, const Matrix& matrix, int64_t low, int64_t high, const TilePlan& tiles,
                         const Activations& inputs, Emit&& emit) const;
    // residual += norm(matrix * inputs + bias)
    void multiply_into_residual(int worker, const Matrix& matrix, const float* bias, const float* norm,
                                const Activations& inputs);
    void multiply_into_residual(int worker, const Matrix& matrix, const float* bias, const float* norm) {
        multiply_into_residual(worker, matrix, bias, norm, activations(worker, num_rows_));
    }
    void add_normalised(int worker, const float* norm);
    int64_t panel_chunk(int64_t num_panels) const;
    PanelRoom panel_room(int worker, std::initializer_list<const Matrix*> matrices, const TilePlan& tiles) const;

    // Panels of gate and up for one tile; the activated products go to out[token][rows from the first one's on],
    // rows so many values apart.
    void gate_up_tile(const FeedForward& weights, const ReadyPanels& gates, const ReadyPanels& ups,
                      const TilePlan& tiles, int64_t index, const Activations& inputs, float* out,
                      int64_t stride) const;
    // run(gates, ups) for runs of panels low .. high - 1.
    template <typename Run>
    void each_gate_up_run(int worker, const FeedForward& weights, int64_t low, int64_t high, const TilePlan& tiles,
                          Run&& run) const;
    void activate(float* gate, float* up, int64_t num_values) const;
    void activate_ungated(const LayerConfig& layer, float* values, int64_t num_values) const;

    // Adapters: A times the rows of each, and what comes of that in a tile of one panel's outputs.
    void multiply_a(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_rows,
                    const Activations& inputs);
    void multiply_a(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_rows) {
        multiply_a(worker, matrices, num_rows, activations(worker, num_rows));
    }
    void request_b(const Matrix& matrix, int64_t panel, int64_t tile) const;
    void add_b(const Matrix& matrix, int64_t panel, int64_t tile, int64_t first_row, float* out) const;
    float* low_rank_inputs(int32_t a_id, int64_t first_row, const TileShare& share) const;
    void multiply_share(const LowRank& change, const TileShare& share, int64_t first_row, const ActTile& tile) const;
    ActTile own_inputs(int worker, const ActTile& tile, int64_t columns, ActFormat format,
                       const TileShare& share) const;

    // A mixture of experts: who goes where, products of pairs (see ExpertDispatch), and their sums.
    void route(int worker, const LayerWeights& layer);
    void choose_experts(int worker, const LayerWeights& layer, int64_t row);
    template <typename Each>
    void each_expert_tile(int worker, Each&& each);
    void quantise_pairs(int worker, const LayerWeights& layer);
    void quantise_gated_pairs(int worker, const Mixture& mixture);
    void multiply_gate_up(int worker, const Mixture& mixture);
    void multiply_down(int worker, const Mixture& mixture);
    void add_experts(int worker);

    std::shared_ptr<const Model> model_;
    ThreadPool pool_;
    StepTimers timers_{pool_};
    KvPool kv_;
    int64_t max_batch_tokens_;
    int64_t max_logit_rows_;  // rows that share one pass over the output matrix

    std::mutex step_mutex_;  // two threads that call step() take turns

    // Set by step() for the body.
    StepInput input_;
    SampleResult* results_ = nullptr;
    int64_t num_rows_ = 0;  // rows of residual_ that still matter: all tokens, in the end the kept rows
    std::vector<int32_t> positions_, sequences_;  // of each token
    std::vector<int32_t> first_rows_;             // token row that each sequence begins with
    BlockRows block_rows_;
    std::vector<int32_t> summed_rows_;  // token rows of the state sums
    std::vector<int32_t> kept_rows_;    // token rows whose logits or states are wanted, ascending

    std::vector<int64_t> copy_offsets_;  // of each worker in this step, see Model::copy_offset

    PageBuffer scratch_;
    Activations shared_activations_;
    Activations gated_activations_;  // of all rows, between the products of gate and up and that of down
    std::vector<Activations> worker_activations_;
    std::vector<Activations> share_activations_;  // of each worker, the rows of one adapter in a tile
    AdaptedRows adapted_;
    Attention attention_;
    ExpertDispatch dispatch_;
    float* low_rank_ = nullptr;          // [matrices of one input][tokens][kMaxRank], what adapters make of the inputs
    float* residual_ = nullptr;          // [tokens][hidden_size]
    float* query_ = nullptr;             // [tokens][query_size]
    float* key_ = nullptr;               // [tokens][kv_size]
    float* value_ = nullptr;             // [tokens][kv_size]
    float* gates_and_values_ = nullptr;  // [tokens][3 * hidden_size], see Convolution; null without one
    float* attended_ = nullptr;          // [tokens][query_size], or [tokens][hidden_size] of a convolution
    float* branch_ = nullptr;            // [tokens][hidden_size], what a norm sees before it is added; null without one
    float* gated_ = nullptr;             // [tokens][feed_forward_size], or as ExpertDispatch::Active::first_gated says
    float* expert_out_ = nullptr;        // [pairs][hidden_size]
    float* cos_ = nullptr;               // [tokens][pairs of all rope tables]
    float* sin_ = nullptr;               // the same
    float* pooled_ = nullptr;            // [tokens][hidden_size], sums or means of states; null without a head
    float* head_inner_ = nullptr;        // [tokens][rows of its first matrix]; the same
    double* worker_sums_ = nullptr;      // [workers][hidden_size]; the same
    float* logits_ = nullptr;            // [max_logit_rows][vocab_size]
    float* worker_rows_ = nullptr;       // [workers][hidden_size]
    float* worker_vocab_ = nullptr;      // [workers][vocab_size]
    uint8_t* worker_panels_ = nullptr;   // [workers][kUnpackRoomBytes]
};

}  // namespace treadle

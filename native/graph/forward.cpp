// The forward pass of the llama family as one SPMD body: every worker runs it, phases end at barriers.
//
// Each phase computes every output element with an order of operations that depends on that element's token alone.
// Hence the promise of the runtime: the same bits whatever the batch, the chunking and the number of workers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime_impl.h"

namespace treadle {
namespace {

// Kernels request weights some KiB ahead of their use, into the next panels; the first ones of a chunk nobody has
// requested. On a Zen 5 (November 2026) this made a product of eight tokens and 1536 columns a fifth faster.
void request_start(const uint8_t* panel) {
    constexpr int kBytes = 7168;
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(panel + i);
}

// A part of a tile of this many columns stays in the nearest cache while token after token is written into it.
constexpr int64_t kQuantiseColumns = 2048;

}  // namespace

template <typename Emit>
void Runtime::Impl::multiply(int worker, std::initializer_list<const Matrix*> matrices, int64_t num_tokens,
                             Emit&& emit) {
    const TilePlan tiles(num_tokens);
    const Activations& inputs = activations(worker, num_tokens);
    int64_t num_panels = 0;
    for (const Matrix* matrix : matrices) num_panels += matrix->num_panels();
    alignas(64) float out[kMaxTile * kPanelRows];
    pool_.share(worker, num_panels, panel_chunk(num_panels), [&](int64_t begin, int64_t end) {
        int64_t first_panel = 0;  // of the matrix, in the common numbering
        for (const Matrix* matrix : matrices) {
            const int64_t low = std::max<int64_t>(begin - first_panel, 0);
            const int64_t high = std::min(end - first_panel, matrix->num_panels());
            first_panel += matrix->num_panels();
            if (low >= high) continue;
            const MatmulFn kernel = model_->kernels().matmul[matrix->format];
            request_start(matrix->panel(low));
            // Tile outside, panel inside: a tile is read once into the nearest cache, a few panels stay in the next
            // one.
            for (int64_t t = 0; t < tiles.num_tiles; ++t) {
                const ActTile tile = inputs.tile(tiles, t, matrix->columns);
                for (int64_t p = low; p < high; ++p) {
                    kernel(matrix->panel(p), matrix->columns, &tile, out);
                    const int64_t rows = std::min<int64_t>(kPanelRows, matrix->rows - p * kPanelRows);
                    emit(*matrix, p * kPanelRows, rows, tiles.start(t), tile.num_tokens, out);
                }
            }
        }
    });
}

int64_t Runtime::Impl::panel_chunk(int64_t num_panels) const {
    return std::clamp<int64_t>(num_panels / (16 * pool_.num_threads()), 1, 8);
}

void Runtime::Impl::multiply_into_residual(int worker, const Matrix& matrix, const float* bias) {
    multiply(worker, {&matrix}, num_rows_,
             [&](const Matrix&, int64_t row, int64_t num_rows, int64_t token, int64_t num_tokens, const float* out) {
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     float* target = residual_ + (token + t) * matrix.rows + row;
                     for (int64_t r = 0; r < num_rows; ++r) {
                         target[r] += bias ? out[t * kPanelRows + r] + bias[row + r] : out[t * kPanelRows + r];
                     }
                 }
             });
}

const Activations& Runtime::Impl::activations(int worker, int64_t num_rows) const {
    return num_rows <= kRepeatedTokens ? worker_activations_[static_cast<size_t>(worker)] : shared_activations_;
}

template <typename Row>
void Runtime::Impl::quantise(int worker, int64_t num_rows, int64_t columns,
                             std::initializer_list<const Matrix*> consumers, Row&& row) {
    const TilePlan tiles(num_rows);
    const Activations& target = activations(worker, num_rows);
    const auto quantise_one = [&](int64_t index, int64_t first_column, int64_t end_column) {
        const float* values = row(index) + first_column;
        const int64_t tile_index = tiles.tile_of(index);
        const auto token = static_cast<int32_t>(index - tiles.start(tile_index));
        bool done[kNumActFormats] = {};  // by ActFormat: consumers mostly agree
        for (const Matrix* matrix : consumers) {
            const ActFormat format = act_format_of(matrix->format);
            if (done[format]) continue;
            done[format] = true;
            const ActTile tile = skip_columns(target.tile(tiles, tile_index, columns), first_column);
            model_->kernels().quantize[format](values, end_column - first_column, token, &tile);
        }
    };
    if (num_rows <= kRepeatedTokens) {
        for (int64_t index = 0; index < num_rows; ++index) quantise_one(index, 0, columns);
        timers_.lap(worker, Operator::kNormQuantise);
        return;
    }
    // The tokens of a tile interleave inside cache lines: a worker takes all of them, of some of the columns.
    const int64_t num_workers = tiles.num_tiles < 4 * pool_.num_threads() ? pool_.num_threads() : 1;
    const int64_t num_parts = std::max((columns + kQuantiseColumns - 1) / kQuantiseColumns, num_workers);
    const int64_t part = (columns + 32 * num_parts - 1) / (32 * num_parts) * 32;
    pool_.share(worker, tiles.num_tiles * num_parts, 1, [&](int64_t item, int64_t) {
        const int64_t tile = item / num_parts, first = std::min(item % num_parts * part, columns);
        for (int32_t i = 0; i < tiles.width(tile); ++i) {
            quantise_one(tiles.start(tile) + i, first, std::min(first + part, columns));
        }
    });
    timers_.lap(worker, Operator::kNormQuantise);
}

const float* Runtime::Impl::normalised(int worker, const float* row, const float* norm) {
    const ModelConfig& config = model_->config();
    float* scratch = worker_rows_ + static_cast<int64_t>(worker) * config.hidden_size;
    model_->kernels().rms_norm(row, norm, config.hidden_size, config.norm_epsilon, scratch);
    return scratch;
}

void Runtime::Impl::rotary_angles(int64_t token) {
    const ModelConfig& config = model_->config();
    const auto num_pairs = static_cast<int64_t>(config.rope_frequencies.size());
    for (int64_t i = 0; i < num_pairs; ++i) {
        const double angle = positions_[token] * config.rope_frequencies[i];
        cos_[token * num_pairs + i] = static_cast<float>(std::cos(angle)) * config.rope_magnitude;
        sin_[token * num_pairs + i] = static_cast<float>(std::sin(angle)) * config.rope_magnitude;
    }
}

void Runtime::Impl::embed(int worker) {
    const Matrix& table = model_->token_embedding();
    pool_.share(worker, input_.num_tokens, 1, [&](int64_t token, int64_t) {
        const int32_t id = input_.token_ids[token];
        dequantize_panel_row(table.format, table.panel(id / kPanelRows), id % kPanelRows, table.columns,
                             residual_ + token * table.columns);
        rotary_angles(token);
    });
}

void Runtime::Impl::rotate(float* head, int64_t token) const {
    const ModelConfig& config = model_->config();
    const int32_t half = config.rotary_dims / 2;
    const KernelTable& kernels = model_->kernels();
    const auto rope = config.rope_pairing == RopePairing::kAdjacent ? kernels.rope_adjacent : kernels.rope_halves;
    rope(head, cos_ + token * half, sin_ + token * half, half);
}

void Runtime::Impl::rotate_and_store(int worker, int32_t layer) {
    const ModelConfig& config = model_->config();
    const KernelTable& kernels = model_->kernels();
    const float scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    const int64_t heads_per_token = config.num_heads + config.num_kv_heads;
    const int64_t chunk = std::max<int64_t>(1, heads_per_token * input_.num_tokens / (8 * pool_.num_threads()));
    pool_.share(worker, heads_per_token * input_.num_tokens, chunk, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t token = item / heads_per_token;
            const auto head = static_cast<int32_t>(item % heads_per_token);
            if (head < config.num_heads) {
                float* query = query_ + token * config.query_size() + head * config.head_dim;
                rotate(query, token);
                for (int32_t d = 0; d < config.head_dim; ++d) query[d] *= scale;
                continue;
            }
            const int32_t kv_head = head - config.num_heads;
            const int32_t* table = input_.block_tables + sequences_[token] * input_.table_width;
            const int32_t block = table[positions_[token] / kKvBlockTokens];
            const int32_t slot = positions_[token] % kKvBlockTokens;
            float* key = key_ + token * config.kv_size() + kv_head * config.head_dim;
            rotate(key, token);
            const float* value = value_ + token * config.kv_size() + kv_head * config.head_dim;
            kv_.store(kernels, block, layer, kv_head, slot, key, value);
        }
    });
}

void Runtime::Impl::project_and_store(int worker, int32_t index) {
    const LayerWeights& layer = model_->layers()[index];
    const ModelConfig& config = model_->config();
    quantise(worker, input_.num_tokens, config.hidden_size, {&layer.query, &layer.key, &layer.value},
             [&](int64_t token) {
                 return normalised(worker, residual_ + token * config.hidden_size, layer.attention_norm);
             });
    multiply(
        worker, {&layer.query, &layer.key, &layer.value}, input_.num_tokens,
        [&](const Matrix& matrix, int64_t row, int64_t num_rows, int64_t token, int64_t num_tokens, const float* out) {
            const bool is_query = &matrix == &layer.query;
            const bool is_key = &matrix == &layer.key;
            float* rows = is_query ? query_ : is_key ? key_ : value_;
            const float* bias = is_query ? layer.query_bias : is_key ? layer.key_bias : layer.value_bias;
            for (int64_t t = 0; t < num_tokens; ++t) {
                float* target = rows + (token + t) * matrix.rows + row;
                for (int64_t r = 0; r < num_rows; ++r) {
                    target[r] = bias ? out[t * kPanelRows + r] + bias[row + r] : out[t * kPanelRows + r];
                }
            }
        });
    timers_.lap(worker, Operator::kQkv,
                [&] { return product_work({&layer.query, &layer.key, &layer.value}, input_.num_tokens); });
    rotate_and_store(worker, index);
    timers_.lap(worker, Operator::kRotateStore);
}

// After the last attention only the rows whose logits or states are wanted matter: moves them to the front.
void Runtime::Impl::keep_rows(int worker) {
    const ModelConfig& config = model_->config();
    if (worker == 0) {
        num_rows_ = static_cast<int64_t>(kept_rows_.size());
        for (int64_t i = 0; i < num_rows_; ++i) {
            const int64_t from = kept_rows_[static_cast<size_t>(i)];
            std::memmove(residual_ + i * config.hidden_size, residual_ + from * config.hidden_size,
                         static_cast<size_t>(config.hidden_size) * sizeof(float));
            std::memmove(attended_ + i * config.query_size(), attended_ + from * config.query_size(),
                         static_cast<size_t>(config.query_size()) * sizeof(float));
        }
    }
    pool_.barrier(worker);
    timers_.lap(worker, Operator::kKeepRows);
}

void Runtime::Impl::attention_output(int worker, const LayerWeights& layer) {
    const int64_t columns = model_->config().query_size();
    quantise(worker, num_rows_, columns, {&layer.attention_output},
             [&](int64_t row) { return attended_ + row * columns; });
    multiply_into_residual(worker, layer.attention_output, layer.attention_output_bias);
    timers_.lap(worker, Operator::kAttentionOutput, [&] { return product_work({&layer.attention_output}, num_rows_); });
}

void Runtime::Impl::feed_forward_block(int worker, const LayerWeights& layer) {
    const int64_t columns = layer.gate.columns;
    quantise(worker, num_rows_, columns, {&layer.gate, &layer.up},
             [&](int64_t row) { return normalised(worker, residual_ + row * columns, layer.feed_forward_norm); });
    const TilePlan tiles(num_rows_);
    const Activations& inputs = activations(worker, num_rows_);
    const KernelTable& kernels = model_->kernels();
    alignas(64) float gate[kMaxTile * kPanelRows];
    alignas(64) float up[kMaxTile * kPanelRows];
    // Gate and up panels of the same rows go together, so their product never leaves the worker.
    pool_.share(worker, layer.gate.num_panels(), panel_chunk(layer.gate.num_panels()), [&](int64_t begin, int64_t end) {
        request_start(layer.gate.panel(begin));
        request_start(layer.up.panel(begin));
        for (int64_t t = 0; t < tiles.num_tiles; ++t) {
            const ActTile tile = inputs.tile(tiles, t, columns);
            for (int64_t p = begin; p < end; ++p) {
                kernels.matmul[layer.gate.format](layer.gate.panel(p), columns, &tile, gate);
                kernels.matmul[layer.up.format](layer.up.panel(p), columns, &tile, up);
                kernels.silu_mul(gate, up, tile.num_tokens * kPanelRows, gate);
                const int64_t rows = std::min<int64_t>(kPanelRows, layer.gate.rows - p * kPanelRows);
                for (int32_t i = 0; i < tile.num_tokens; ++i) {
                    float* target = gated_ + (tiles.start(t) + i) * layer.gate.rows + p * kPanelRows;
                    std::memcpy(target, gate + i * kPanelRows, static_cast<size_t>(rows) * sizeof(float));
                }
            }
        }
    });
    timers_.lap(worker, Operator::kGateUp, [&] { return product_work({&layer.gate, &layer.up}, num_rows_); });
    quantise(worker, num_rows_, layer.gate.rows, {&layer.down},
             [&](int64_t row) { return gated_ + row * layer.gate.rows; });
    multiply_into_residual(worker, layer.down, nullptr);
    timers_.lap(worker, Operator::kDown, [&] { return product_work({&layer.down}, num_rows_); });
}

// Where a token's row of residual_ is, once only the kept ones are left.
const float* Runtime::Impl::kept(int64_t row) const {
    const auto place = std::lower_bound(kept_rows_.begin(), kept_rows_.end(), row) - kept_rows_.begin();
    return residual_ + place * model_->config().hidden_size;
}

void Runtime::Impl::add_states(int worker) {
    const int64_t hidden_size = model_->config().hidden_size;
    pool_.share(worker, input_.num_state_sums, 1, [&](int64_t index, int64_t) {
        const StateSum& target = input_.state_sums[index];
        const float* residual = kept(target.first_row);  // the rows after it follow there, too
        for (int64_t r = 0; r < target.num_rows; ++r) {
            const float* state = normalised(worker, residual + r * hidden_size, model_->output_norm());
            for (int64_t d = 0; d < hidden_size; ++d) target.sum[d] += static_cast<double>(state[d]);
        }
    });
    timers_.lap(worker, Operator::kAddStates);
}

void Runtime::Impl::logits_and_samples(int worker) {
    const ModelConfig& config = model_->config();
    const Matrix& output = model_->output();
    float* vocab_scratch = worker_vocab_ + static_cast<int64_t>(worker) * config.vocab_size;
    for (int64_t first = 0; first < input_.num_logit_rows; first += max_logit_rows_) {
        const int64_t num_rows = std::min(max_logit_rows_, input_.num_logit_rows - first);
        float* logits = input_.logits ? input_.logits + first * config.vocab_size : logits_;
        quantise(worker, num_rows, config.hidden_size, {&output}, [&](int64_t row) {
            return normalised(worker, kept(input_.logit_rows[first + row]), model_->output_norm());
        });
        multiply(worker, {&output}, num_rows,
                 [&](const Matrix&, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, const float* out) {
                     for (int64_t t = 0; t < num_tokens; ++t) {
                         std::memcpy(logits + (token + t) * config.vocab_size + row, out + t * kPanelRows,
                                     static_cast<size_t>(rows) * sizeof(float));
                     }
                 });
        timers_.lap(worker, Operator::kLogits, [&] { return product_work({&output}, num_rows); });
        pool_.share(worker, num_rows, 1, [&](int64_t row, int64_t) {
            results_[first + row] =
                input_.samplers[first + row]->sample(logits + row * config.vocab_size, vocab_scratch);
        });
        timers_.lap(worker, Operator::kSample);
    }
}

void Runtime::Impl::forward(int worker) {
    const int32_t last = model_->config().num_layers - 1;
    timers_.lap(worker, Operator::kStart);
    embed(worker);
    timers_.lap(worker, Operator::kEmbed);
    for (int32_t index = 0; index <= last; ++index) {
        const LayerWeights& layer = model_->layers()[index];
        project_and_store(worker, index);
        if (index == last && kept_rows_.empty()) return;  // the step only fills the KV blocks
        attention_.run(pool_, worker, index, query_, attended_);
        timers_.lap(worker, Operator::kAttention, [&] { return attention_.work(); });
        if (index == last) keep_rows(worker);
        attention_output(worker, layer);
        feed_forward_block(worker, layer);
    }
    if (input_.num_state_sums > 0) add_states(worker);
    logits_and_samples(worker);
}

}  // namespace treadle

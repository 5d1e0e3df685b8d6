#include "products.h"

namespace treadle {
namespace {

// out = x less its mean, whose sum runs in 16 lanes as that of rms_norm does.
void centre(const float* x, int64_t count, float* out) {
    constexpr int kLanes = 16;
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
    }
    for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i];
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    const float mean = lanes[0] / static_cast<float>(count);
    for (i = 0; i < count; ++i) out[i] = x[i] - mean;
}

}  // namespace

int64_t Runtime::Impl::panel_chunk(int64_t num_panels) const {
    return std::clamp<int64_t>(num_panels / (16 * pool_.num_threads()), 1, kMaxPanelChunk);
}

PanelRoom Runtime::Impl::panel_room(int worker, std::initializer_list<const Matrix*> matrices,
                                    const TilePlan& tiles) const {
    return {model_->kernels(), worker_panels_ + worker * kUnpackRoomBytes, matrices, tiles.num_tiles};
}

void Runtime::Impl::multiply_into_residual(int worker, const Matrix& matrix, const float* bias, const float* norm,
                                           const Activations& inputs) {
    multiply_a(worker, {&matrix}, num_rows_, inputs);
    if (norm) {
        multiply(worker, {&matrix}, num_rows_, inputs,
                 [&](const Matrix&, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, const float* out) {
                     for (int64_t t = 0; t < num_tokens; ++t) {
                         float* target = branch_ + (token + t) * matrix.rows + row;
                         for (int64_t r = 0; r < rows; ++r) {
                             target[r] = bias ? out[t * kPanelRows + r] + bias[row + r] : out[t * kPanelRows + r];
                         }
                     }
                 });
        return add_normalised(worker, norm);
    }
    const float scale = model_->config().residual_scale;
    multiply(worker, {&matrix}, num_rows_, inputs,
             [&](const Matrix&, int64_t row, int64_t num_rows, int64_t token, int64_t num_tokens, const float* out) {
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     float* target = residual_ + (token + t) * matrix.rows + row;
                     for (int64_t r = 0; r < num_rows; ++r) {
                         const float added = bias ? out[t * kPanelRows + r] + bias[row + r] : out[t * kPanelRows + r];
                         target[r] += scale * added;
                     }
                 }
             });
}

void Runtime::Impl::add_normalised(int worker, const float* norm) {
    const ModelConfig& config = model_->config();
    pool_.share(worker, num_rows_, 1, [&](int64_t row, int64_t) {
        const float* added = normalised(worker, branch_ + row * config.hidden_size, {norm, nullptr});
        float* target = residual_ + row * config.hidden_size;
        for (int32_t d = 0; d < config.hidden_size; ++d) target[d] += config.residual_scale * added[d];
    });
}

void Runtime::Impl::quantise_row(const ActTile& tile, int32_t token, const float* values, int64_t num_columns,
                                 std::initializer_list<const Matrix*> consumers) const {
    bool done[kNumActFormats] = {};  // consumers mostly agree
    for (const Matrix* matrix : consumers) {
        const ActFormat format = act_format_of(matrix->format);
        if (done[format]) continue;
        done[format] = true;
        model_->kernels().quantize[format](values, num_columns, token, &tile);
    }
}

const Activations& Runtime::Impl::activations(int worker, int64_t num_rows) const {
    return num_rows <= kRepeatedTokens ? worker_activations_[static_cast<size_t>(worker)] : shared_activations_;
}

const float* Runtime::Impl::normalised(int worker, const float* row, const Norm& norm) {
    if (norm.weight == nullptr) return row;
    const ModelConfig& config = model_->config();
    float* scratch = worker_rows_ + static_cast<int64_t>(worker) * config.hidden_size;
    normalise(row, norm, scratch);
    return scratch;
}

void Runtime::Impl::normalise(const float* row, const Norm& norm, float* out) const {
    const ModelConfig& config = model_->config();
    if (config.centres_norms) {
        centre(row, config.hidden_size, out);
        row = out;
    }
    model_->kernels().rms_norm(row, norm.weight, config.hidden_size, config.norm_epsilon, out);
    for (int32_t d = 0; norm.bias && d < config.hidden_size; ++d) out[d] += norm.bias[d];
}

void Runtime::Impl::normalise_residual(int worker, const Norm& norm) {
    const int64_t hidden_size = model_->config().hidden_size;
    pool_.share(worker, num_rows_, 1, [&](int64_t row, int64_t) {
        float* values = residual_ + row * hidden_size;
        normalise(values, norm, values);
    });
    timers_.lap(worker, Operator::kNormQuantise);
}

}  // namespace treadle

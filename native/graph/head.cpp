// What leaves the model in the stead of a token: sums of states, or what a head makes of them.
#include <algorithm>
#include <cmath>

#include "products.h"

namespace treadle {

void Runtime::Impl::sum_states(int worker, const StateSum& rows, double* sum) {
    const int64_t hidden_size = model_->config().hidden_size;
    const float* residual = kept(rows.first_row);  // the rows after it follow there, too
    for (int64_t r = 0; r < rows.num_rows; ++r) {
        const float* state = normalised(worker, residual + r * hidden_size, model_->ends().output_norm);
        for (int64_t d = 0; d < hidden_size; ++d) sum[d] += static_cast<double>(state[d]);
    }
}

void Runtime::Impl::add_states(int worker) {
    if (model_->ends().head.exists()) return run_head(worker);
    pool_.share(worker, input_.num_state_sums, 1, [&](int64_t index, int64_t) {
        sum_states(worker, input_.state_sums[index], input_.state_sums[index].sum);
    });
    timers_.lap(worker, Operator::kAddStates);
}

void Runtime::Impl::pool_states(int worker) {
    const int64_t hidden_size = model_->config().hidden_size;
    const bool means = model_->ends().head.means;
    double* sum = worker_sums_ + worker * hidden_size;
    pool_.share(worker, input_.num_state_sums, 1, [&](int64_t index, int64_t) {
        const StateSum& rows = input_.state_sums[index];
        std::fill_n(sum, hidden_size, 0.0);
        sum_states(worker, rows, sum);
        const auto divisor = means ? static_cast<double>(rows.num_rows) : 1.0;
        std::transform(sum, sum + hidden_size, pooled_ + index * hidden_size,
                       [divisor](double value) { return static_cast<float>(value / divisor); });
    });
}

void Runtime::Impl::head_inner(int worker) {
    const int64_t num_sums = input_.num_state_sums, hidden_size = model_->config().hidden_size;
    const Head& head = model_->ends().head;
    quantise(worker, num_sums, hidden_size, {&head.first}, [&](int64_t row) { return pooled_ + row * hidden_size; });
    multiply(worker, {&head.first}, num_sums,
             [&](const Matrix& matrix, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, float* out) {
                 if (head.first_bias) add_bias(head.first_bias + row, rows, num_tokens, out);
                 const int64_t count = num_tokens * kPanelRows;
                 if (head.activation == Head::Activation::kTanh) {
                     std::transform(out, out + count, out, [](float value) { return std::tanh(value); });
                 } else if (head.activation == Head::Activation::kGelu) {
                     model_->kernels().gelu_mul(out, kOnes.data(), count, out);
                 }
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     std::copy_n(out + t * kPanelRows, rows, head_inner_ + (token + t) * matrix.rows + row);
                 }
             });
    if (head.norm.weight == nullptr) return;
    pool_.share(worker, num_sums, 1, [&](int64_t index, int64_t) {
        float* row = head_inner_ + index * head.first.rows;
        normalise(row, head.norm, row);
    });
}

void Runtime::Impl::run_head(int worker) {
    const int64_t num_sums = input_.num_state_sums;
    const Head& head = model_->ends().head;
    pool_states(worker);
    const bool has_first = head.first.rows > 0;
    if (has_first) head_inner(worker);
    const float* inner = has_first ? head_inner_ : pooled_;
    const int64_t columns = head.second.columns;
    quantise(worker, num_sums, columns, {&head.second}, [&](int64_t row) { return inner + row * columns; });
    multiply(worker, {&head.second}, num_sums,
             [&](const Matrix&, int64_t row, int64_t rows, int64_t token, int64_t num_tokens, float* out) {
                 if (head.second_bias) add_bias(head.second_bias + row, rows, num_tokens, out);
                 for (int64_t t = 0; t < num_tokens; ++t) {
                     double* target = input_.state_sums[token + t].sum + row;
                     for (int64_t r = 0; r < rows; ++r) target[r] += static_cast<double>(out[t * kPanelRows + r]);
                 }
             });
    timers_.lap(worker, Operator::kAddStates, [&] {
        return has_first ? product_work({&head.first, &head.second}, num_sums) : product_work({&head.second}, num_sums);
    });
}

}  // namespace treadle

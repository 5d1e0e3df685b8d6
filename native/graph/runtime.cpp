// Runtime: checks what a step is asked to do, owns its memory, and starts the workers.
#include <algorithm>
#include <iterator>
#include <string>

#include "runtime_impl.h"
#include "treadle/errors.h"

namespace treadle {
namespace {

constexpr int64_t kMaxLogitRows = 64;

std::string in_range_text(const char* what, int64_t index, int64_t found, int64_t low, int64_t high) {
    return std::string(what) + " " + std::to_string(index) + " is " + std::to_string(found) + ", expected " +
           std::to_string(low) + " to " + std::to_string(high);
}

void expect_in_range(const char* what, int64_t index, int64_t found, int64_t low, int64_t high) {
    if (found < low || found > high) throw UsageError("step: " + in_range_text(what, index, found, low, high));
}

}  // namespace

Runtime::Impl::Impl(std::shared_ptr<const Model> model, std::vector<int> cpus, const std::vector<int64_t>& num_blocks,
                    int64_t max_batch_tokens, KvType kv_type)
    : model_(std::move(model)),
      pool_(std::move(cpus)),
      kv_(model_->config(), kv_type, num_blocks),
      max_batch_tokens_(max_batch_tokens),
      max_logit_rows_(std::min(max_batch_tokens, kMaxLogitRows)),
      attention_(*model_, kv_, block_rows_),
      dispatch_(model_->config(), max_batch_tokens) {
    positions_.reserve(static_cast<size_t>(max_batch_tokens));
    sequences_.reserve(static_cast<size_t>(max_batch_tokens));
    first_rows_.reserve(static_cast<size_t>(max_batch_tokens));
    summed_rows_.reserve(static_cast<size_t>(max_batch_tokens));
    kept_rows_.reserve(static_cast<size_t>(max_batch_tokens));
    attention_.reserve(max_batch_tokens);
    const auto num_groups = static_cast<int64_t>(kv_.groups().size());
    block_rows_.reserve(max_batch_tokens, num_groups, model_->config().causal ? 0 : kv_.groups().front().num_blocks);
    adapted_.reserve(max_batch_tokens);
    carve_scratch();
}

void Runtime::Impl::carve_scratch() {
    const ModelConfig& config = model_->config();
    const auto tokens = static_cast<size_t>(max_batch_tokens_);
    const auto workers = static_cast<size_t>(pool_.num_threads());
    copy_offsets_.resize(workers);
    const int64_t widest = std::max<int64_t>({config.hidden_size, config.query_size(), config.feed_forward_size,
                                              config.experts.feed_forward_size, config.experts.shared_feed_forward_size,
                                              model_->ends().head.first.rows});
    const Head& head = model_->ends().head;
    const auto logit_size = static_cast<size_t>(config.causal ? config.vocab_size : 0);
    const int64_t max_pairs = dispatch_.max_pairs();
    const int64_t max_values =
        std::max({max_batch_tokens_ * widest, max_pairs * config.hidden_size, dispatch_.max_gated()});
    const auto carve = [&](uint8_t* base) {
        Carver carver(base);
        shared_activations_.carve(carver, max_values);
        gated_activations_.carve(carver, max_batch_tokens_ * config.feed_forward_size);
        worker_activations_.resize(workers);
        for (Activations& own : worker_activations_) own.carve(carver, kRepeatedTokens * widest);
        share_activations_.resize(workers);
        for (Activations& share : share_activations_) share.carve(carver, kMaxTile * widest);
        attention_.carve(carver, pool_.num_threads());
        low_rank_ = carver.take<float>(3 * tokens * kMaxRank);
        residual_ = carver.take<float>(tokens * config.hidden_size);
        query_ = carver.take<float>(tokens * config.query_size());
        key_ = carver.take<float>(tokens * config.kv_size());
        value_ = carver.take<float>(tokens * config.kv_size());
        gates_and_values_ = carver.take<float>(config.has_convolutions() ? 3 * tokens * config.hidden_size : 0);
        attended_ = carver.take<float>(tokens * std::max(config.query_size(), config.hidden_size));
        branch_ = carver.take<float>(model_->has_post_norms() ? tokens * config.hidden_size : 0);
        gated_ = carver.take<float>(std::max(tokens * config.feed_forward_size, size_t(dispatch_.max_gated())));
        expert_out_ = carver.take<float>(static_cast<size_t>(max_pairs * config.hidden_size));
        cos_ = carver.take<float>(tokens * config.rope_pairs());
        sin_ = carver.take<float>(tokens * config.rope_pairs());
        pooled_ = carver.take<float>(head.exists() ? tokens * config.hidden_size : 0);
        head_inner_ = carver.take<float>(tokens * static_cast<size_t>(head.first.rows));
        worker_sums_ = carver.take<double>(head.exists() ? workers * config.hidden_size : 0);
        logits_ = carver.take<float>(static_cast<size_t>(max_logit_rows_) * logit_size);
        worker_rows_ = carver.take<float>(workers * config.hidden_size);
        worker_vocab_ = carver.take<float>(workers * logit_size);
        worker_panels_ = carver.take<uint8_t>(workers * kUnpackRoomBytes);
        return carver.used();
    };
    const size_t needed = carve(nullptr);
    if (needed > scratch_.num_bytes()) scratch_ = PageBuffer(needed, "scratch memory of a step");
    carve(scratch_.data());
}

void Runtime::Impl::set_cpus(std::vector<int> cpus) {
    const std::lock_guard<std::mutex> guard(step_mutex_);
    pool_.set_cpus(std::move(cpus));
    timers_.set_on(timers_.is_on());
    carve_scratch();
}

void Runtime::Impl::set_sitting_out(bool on) {
    const std::lock_guard<std::mutex> guard(step_mutex_);
    pool_.set_sitting_out(on);
}

void Runtime::Impl::check_sequences(const StepInput& input) const {
    int64_t total = 0, num_blocks = 0;
    for (int64_t s = 0; s < input.num_sequences; ++s) {
        expect_in_range("query_lens entry", s, input.query_lens[s], 1, max_batch_tokens_);
        const bool is_whole = !model_->config().causal;
        expect_in_range("start_positions entry", s, input.start_positions[s], 0,
                        is_whole ? 0 : model_->config().context_length - 1);
        const int64_t end = static_cast<int64_t>(input.start_positions[s]) + input.query_lens[s];
        if (end > model_->config().context_length) {
            throw UsageError("step: sequence " + std::to_string(s) + " reaches position " + std::to_string(end) +
                             ", the model's context has " + std::to_string(model_->config().context_length));
        }
        total += input.query_lens[s];
        num_blocks += BlockRows::blocks_for(end);
        if (!is_whole) check_blocks(input, s, end);
    }
    const int64_t most_blocks = kv_.groups().front().num_blocks;
    if (!model_->config().causal && num_blocks > most_blocks) {
        throw UsageError("step: the texts need " + std::to_string(num_blocks) + " KV blocks, there are " +
                         std::to_string(most_blocks));
    }
    if (total != input.num_tokens) {
        throw UsageError("step: query_lens add up to " + std::to_string(total) + ", token_ids has " +
                         std::to_string(input.num_tokens));
    }
}

void Runtime::Impl::check_blocks(const StepInput& input, int64_t sequence, int64_t end) const {
    const int64_t blocks = BlockRows::blocks_for(end);
    if (blocks > input.table_width) {
        throw UsageError("step: sequence " + std::to_string(sequence) + " needs " + std::to_string(blocks) +
                         " KV blocks, its block table has " + std::to_string(input.table_width) + " entries");
    }
    for (size_t g = 0; g < kv_.groups().size(); ++g) {
        const KvGroup& group = kv_.groups()[g];
        const int64_t table = static_cast<int64_t>(g) * input.group_stride + sequence * input.table_width;
        const int32_t first = attention_.first_in_sight(input.start_positions[sequence], group.window);
        for (int64_t b = first / kKvBlockTokens; b < blocks; ++b) {
            expect_in_range("block_tables entry", table + b, input.block_tables[table + b], 0, group.num_blocks - 1);
        }
    }
}

void Runtime::Impl::check_logit_rows(const StepInput& input) const {
    if (input.num_logit_rows > 0 && !model_->config().causal) throw UsageError("step: an encoder has no logits");
    for (int64_t i = 0; i < input.num_logit_rows; ++i) {
        const int64_t lowest = i == 0 ? 0 : input.logit_rows[i - 1] + int64_t{1};  // ascending, each once
        expect_in_range("logit_rows entry", i, input.logit_rows[i], lowest, input.num_tokens - 1);
        if (input.samplers[i]->vocab_size() != model_->config().vocab_size) {
            throw UsageError("step: the sampler of logit row " + std::to_string(i) + " is for " +
                             std::to_string(input.samplers[i]->vocab_size()) + " tokens, the model has " +
                             std::to_string(model_->config().vocab_size));
        }
    }
}

void Runtime::Impl::check_state_sums(const StepInput& input) const {
    int64_t lowest = 0;  // ascending, each row once
    for (int64_t i = 0; i < input.num_state_sums; ++i) {
        const StateSum& sum = input.state_sums[i];
        expect_in_range("first row of state sum", i, sum.first_row, lowest, input.num_tokens - 1);
        expect_in_range("number of rows of state sum", i, sum.num_rows, 1, input.num_tokens - sum.first_row);
        lowest = sum.first_row + sum.num_rows;
    }
}

void Runtime::Impl::check(const StepInput& input) const {
    if (input.num_tokens < 1 || input.num_tokens > max_batch_tokens_) {
        throw UsageError("step: " + std::to_string(input.num_tokens) + " tokens, expected 1 to " +
                         std::to_string(max_batch_tokens_));
    }
    for (int64_t i = 0; i < input.num_tokens; ++i) {
        expect_in_range("token_ids entry", i, input.token_ids[i], 0, model_->config().vocab_size - 1);
    }
    check_sequences(input);
    check_logit_rows(input);
    check_state_sums(input);
    if (input.adapters != nullptr && !model_->config().causal) throw UsageError("step: an encoder takes no adapters");
    for (int64_t s = 0; input.adapters != nullptr && s < input.num_sequences; ++s) {
        if (input.adapters[s] != nullptr && &input.adapters[s]->model() != model_.get()) {
            throw UsageError("step: the adapter of sequence " + std::to_string(s) + " was loaded for another model");
        }
    }
}

void Runtime::Impl::list_tokens() {
    positions_.clear();
    sequences_.clear();
    first_rows_.clear();
    for (int32_t s = 0; s < input_.num_sequences; ++s) {
        first_rows_.push_back(static_cast<int32_t>(positions_.size()));
        for (int32_t i = 0; i < input_.query_lens[s]; ++i) {
            positions_.push_back(input_.start_positions[s] + i);
            sequences_.push_back(s);
        }
    }
}

void Runtime::Impl::list_kept_rows() {
    summed_rows_.clear();
    kept_rows_.clear();
    for (int64_t i = 0; i < input_.num_state_sums; ++i) {
        const StateSum& sum = input_.state_sums[i];
        for (int64_t r = 0; r < sum.num_rows; ++r) summed_rows_.push_back(static_cast<int32_t>(sum.first_row + r));
    }
    std::set_union(input_.logit_rows, input_.logit_rows + input_.num_logit_rows, summed_rows_.begin(),
                   summed_rows_.end(), std::back_inserter(kept_rows_));
}

void Runtime::Impl::step(const StepInput& input, SampleResult* results) {
    const std::lock_guard<std::mutex> guard(step_mutex_);
    timers_.begin_step();
    check(input);
    input_ = input;
    results_ = results;
    num_rows_ = input.num_tokens;
    list_tokens();
    list_kept_rows();
    adapted_.list(input_);
    if (model_->config().causal) {
        block_rows_.follow(input);
    } else {
        block_rows_.assign(input);
    }
    attention_.plan(input, pool_.num_threads());
    pool_.run([this](int worker) { forward(worker); });
    timers_.end_step();
}

void Runtime::Impl::set_timing(bool on) {
    const std::lock_guard<std::mutex> guard(step_mutex_);
    timers_.set_on(on);
}

StepTimings Runtime::Impl::timings() {
    const std::lock_guard<std::mutex> guard(step_mutex_);
    return timers_.read();
}

Runtime::Runtime(std::shared_ptr<const Model> model, std::vector<int> cpus, const std::vector<int64_t>& num_blocks,
                 int64_t max_batch_tokens, KvType kv_type) {
    for (const int64_t count : num_blocks) {
        if (count < 1 || count > (int64_t{1} << 24)) {
            throw UsageError("num_blocks is " + std::to_string(count) + ", expected 1 to 16777216");
        }
    }
    if (max_batch_tokens < 1 || max_batch_tokens > (1 << 16)) {
        throw UsageError("max_batch_tokens is " + std::to_string(max_batch_tokens) + ", expected 1 to 65536");
    }
    impl_ = std::make_unique<Impl>(std::move(model), std::move(cpus), num_blocks, max_batch_tokens, kv_type);
}

Runtime::~Runtime() = default;

void Runtime::step(const StepInput& input, SampleResult* results) { impl_->step(input, results); }
void Runtime::set_cpus(std::vector<int> cpus) { impl_->set_cpus(std::move(cpus)); }
void Runtime::set_sitting_out(bool on) { impl_->set_sitting_out(on); }
void Runtime::set_timing(bool on) { impl_->set_timing(on); }
StepTimings Runtime::timings() const { return impl_->timings(); }
int Runtime::num_threads() const { return impl_->pool().num_threads(); }
int Runtime::num_present() const { return impl_->pool().num_present(); }
KvType Runtime::kv_type() const { return impl_->kv().type(); }
const std::vector<KvGroup>& Runtime::kv_groups() const { return impl_->kv().groups(); }
void Runtime::read_kv_block(size_t group, int64_t block, uint8_t* out) const { impl_->kv().read(group, block, out); }
void Runtime::write_kv_block(size_t group, int64_t block, const uint8_t* data) {
    impl_->kv().write(group, block, data);
}
void Runtime::copy_kv_block(size_t group, int64_t from, int64_t to) { impl_->kv().copy(group, from, to); }
int64_t Runtime::max_batch_tokens() const { return impl_->max_batch_tokens(); }
const Model& Runtime::model() const { return impl_->model(); }

int Runtime::lock_memory() const {
    const int error = impl_->kv().lock();
    return error != 0 ? error : impl_->scratch().lock();
}

}  // namespace treadle

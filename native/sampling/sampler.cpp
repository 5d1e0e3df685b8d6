// Every pass over the vocabulary is a plain loop over independent lanes, which a compiler vectorises for baseline
// x86-64; nothing here sorts the vocabulary or allocates in proportion to it.
#include "treadle/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>

#include "treadle/errors.h"

namespace treadle {
namespace {

constexpr int64_t kBlock = 1024;  // tokens per step of the passes: small enough to rescan one for a position
constexpr int64_t kLanes = 16;    // independent accumulators: floating-point sums may not be reordered by the compiler
constexpr float kSmallestExponent = -87.0f;  // below, exp() leaves the normal float range: such a token is never drawn

void require(bool holds, const char* name, double value, const char* expected) {
    if (holds) return;
    std::ostringstream text;
    text << "sampling: " << name << " is " << value << ", expected " << expected;
    throw UsageError(text.str());
}

void require_within(double value, double low, double high, const char* name) {
    if (value >= low && value <= high) return;  // false for NaN
    std::ostringstream expected;
    expected << low << " to " << high;
    require(false, name, value, expected.str().c_str());
}

// exp(x) for x <= 0 within 2 units in the last place, 0 below kSmallestExponent; branch-free, so that loops vectorise.
// What the arithmetic makes of a very negative x is meaningless, and the mask drops it.
// 2^n * e^r with r in [-ln 2 / 2, ln 2 / 2]; the polynomial is the minimax one of the Cephes library.
inline float exp_nonpositive(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
    const float shifted = x * 1.44269504f + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const uint32_t scaled = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
    const uint32_t keep = 0u - static_cast<uint32_t>(x > kSmallestExponent);  // a mask: a choice would become a branch
    return std::bit_cast<float>(scaled & keep);
}

struct Peak {
    float value = -FLT_MAX;
    int64_t index = 0;
    bool finite = true;  // no NaN or infinity anywhere in the row
};

float block_peak(const float* x, int64_t count, bool* finite) {
    float best[kLanes];
    uint32_t broken[kLanes] = {};
    std::fill(best, best + kLanes, -FLT_MAX);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float value = x[i + lane];
            const uint32_t exponent = std::bit_cast<uint32_t>(value) & 0x7f800000u;
            best[lane] = value > best[lane] ? value : best[lane];
            broken[lane] |= exponent == 0x7f800000u ? 1u : 0u;
        }
    }
    for (; i < count; ++i) {
        best[0] = x[i] > best[0] ? x[i] : best[0];
        broken[0] |= std::isfinite(x[i]) ? 0u : 1u;
    }
    for (int64_t lane = 1; lane < kLanes; ++lane) {
        best[0] = std::max(best[0], best[lane]);
        broken[0] |= broken[lane];
    }
    *finite = broken[0] == 0;
    return best[0];
}

// The largest value and the first place that holds it.
Peak find_peak(const float* x, int64_t count) {
    Peak peak;
    int64_t peak_block = 0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        bool finite = true;
        const float value = block_peak(x + begin, std::min(kBlock, count - begin), &finite);
        peak.finite = peak.finite && finite;
        if (value > peak.value) {
            peak.value = value;
            peak_block = begin;
        }
    }
    if (!peak.finite) return peak;
    peak.index = peak_block;
    while (x[peak.index] != peak.value) ++peak.index;
    return peak;
}

double block_sum(const float* x, int64_t count) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
    }
    double sum = 0.0;
    for (; i < count; ++i) sum += x[i];
    for (float lane : lanes) sum += lane;
    return sum;
}

double total_weight(const float* weights, int64_t count) {
    double total = 0.0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        total += block_sum(weights + begin, std::min(kBlock, count - begin));
    }
    return total;
}

double log_sum_exp(const float* logits, int64_t count, float max_logit) {
    float exps[kBlock];
    double total = 0.0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const int64_t length = std::min(kBlock, count - begin);
        for (int64_t i = 0; i < length; ++i) exps[i] = exp_nonpositive(logits[begin + i] - max_logit);
        total += block_sum(exps, length);
    }
    return static_cast<double>(max_logit) + std::log(total);
}

// Which weights stay: every one above `weight`, and of those equal to it the first `num_equal` in id order.
struct Cut {
    float weight = 0.0f;
    int64_t num_equal = 0;
};

// Finds the cut that keeps the heaviest tokens until their amount (their number, or their weight) reaches `target`.
// A radix selection: the bits of a non-negative float order like the float, and weights never exceed 1.0f = 0x3f800000.
template <bool kByWeight>
Cut find_cut(const float* weights, int64_t count, double target) {
    constexpr int kDigits = 1024;
    uint32_t prefix = 0;
    double kept = 0.0;  // amount of everything heavier than the bucket under the glass
    for (int shift = 20; shift >= 0; shift -= 10) {
        double amounts[kDigits] = {};
        for (int64_t i = 0; i < count; ++i) {
            if (weights[i] <= 0.0f) continue;
            const uint32_t bits = std::bit_cast<uint32_t>(weights[i]);
            if (shift == 20 || bits >> (shift + 10) == prefix) {
                amounts[(bits >> shift) & (kDigits - 1)] += kByWeight ? weights[i] : 1.0;
            }
        }
        int digit = kDigits - 1;
        while (digit > 0 && kept + amounts[digit] < target) kept += amounts[digit--];
        prefix = prefix << 10 | static_cast<uint32_t>(digit);
    }
    Cut cut;
    cut.weight = std::bit_cast<float>(prefix);
    const double missing = std::max(0.0, target - kept);
    const double equal = kByWeight && cut.weight > 0.0f ? std::ceil(missing / cut.weight) : missing;
    cut.num_equal = std::max<int64_t>(1, static_cast<int64_t>(std::min(equal, static_cast<double>(count))));
    return cut;
}

void apply_cut(float* weights, int64_t count, Cut cut) {
    int64_t num_equal = 0;
    for (int64_t i = 0; i < count; ++i) num_equal += weights[i] == cut.weight;
    for (int64_t i = 0; i < count; ++i) weights[i] = weights[i] >= cut.weight ? weights[i] : 0.0f;
    for (int64_t i = count - 1; num_equal > cut.num_equal; --i) {
        if (weights[i] != cut.weight) continue;
        weights[i] = 0.0f;
        --num_equal;
    }
}

// The token whose share of the weights, laid end to end in id order, holds the point `uniform` of the whole.
int64_t pick(const float* weights, int64_t count, double uniform) {
    double rest = uniform * total_weight(weights, count);
    int64_t block = 0;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
        const double sum = block_sum(weights + begin, std::min(kBlock, count - begin));
        if (sum <= 0.0) continue;
        block = begin;
        if (rest < sum) break;
        rest -= sum;
    }
    int64_t token = block;
    for (int64_t i = block; i < std::min(block + kBlock, count); ++i) {
        if (weights[i] <= 0.0f) continue;
        token = i;  // stays when rounding lets the rest run past the block
        if (rest < weights[i]) break;
        rest -= weights[i];
    }
    return token;
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Uniform in [0, 1) from seed and position alone: no state that a neighbour or a recomputation could advance.
double uniform_at(uint64_t seed, int64_t position) {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
    const uint64_t stream = mix(seed + kGolden);
    return static_cast<double>(mix(stream + kGolden * (static_cast<uint64_t>(position) + 1)) >> 11) * 0x1.0p-53;
}

std::vector<std::pair<int32_t, float>> most_likely(const float* logits, int64_t count, int64_t num, double log_total) {
    std::vector<std::pair<int32_t, float>> best;
    num = std::min(num, count);
    best.reserve(static_cast<size_t>(num) + 1);
    for (int64_t i = 0; i < count && num > 0; ++i) {
        const bool full = static_cast<int64_t>(best.size()) == num;
        if (full && logits[i] <= best.back().second) continue;
        const auto heavier = [](float value, const auto& entry) { return value > entry.second; };
        best.insert(std::upper_bound(best.begin(), best.end(), logits[i], heavier),
                    {static_cast<int32_t>(i), logits[i]});
        if (full) best.pop_back();
    }
    for (auto& entry : best) entry.second = static_cast<float>(entry.second - log_total);
    return best;
}

}  // namespace

Sampler::Sampler(SamplingParams params, int32_t vocab_size) : params_(std::move(params)), vocab_size_(vocab_size) {
    require(vocab_size > 0, "vocab_size", vocab_size, "at least 1");
    require_within(params_.temperature, 0, 100, "temperature");
    require(params_.top_p > 0.0f && params_.top_p <= 1.0f, "top_p", params_.top_p, "above 0, at most 1");
    require_within(params_.min_p, 0, 1, "min_p");
    require_within(params_.repetition_penalty, 0.01f, 100, "repetition_penalty");
    require_within(params_.presence_penalty, -2, 2, "presence_penalty");
    require_within(params_.frequency_penalty, -2, 2, "frequency_penalty");
    require_within(params_.num_logprobs, -1, 20, "num_logprobs");
    for (const auto& [token, bias] : params_.logit_bias) {
        check_token(token, "logit_bias");
        require_within(bias, -100, 100, "logit_bias");
    }
    uses_history_ =
        params_.repetition_penalty != 1.0f || params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
}

void Sampler::check_token(int32_t token, const char* what) const {
    if (token >= 0 && token < vocab_size_) return;
    throw UsageError("sampling: " + std::string(what) + " names token " + std::to_string(token) +
                     ", expected an id of the vocabulary, 0 to " + std::to_string(vocab_size_ - 1));
}

void Sampler::add_prompt(const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        check_token(tokens[i], "the prompt");
        if (params_.repetition_penalty != 1.0f) output_counts_.try_emplace(tokens[i], 0);
    }
}

void Sampler::accept(int32_t token) {
    check_token(token, "the output");
    if (uses_history_) ++output_counts_[token];
    ++num_accepted_;
}

void Sampler::set_mask(const uint32_t* words, int64_t num_words) {
    if (num_words == 0) {
        mask_.clear();
        return;
    }
    const int64_t expected = (static_cast<int64_t>(vocab_size_) + 31) / 32;
    if (num_words > expected) {
        throw UsageError("sampling: a mask of " + std::to_string(num_words) + " words, expected at most " +
                         std::to_string(expected) + " for a vocabulary of " + std::to_string(vocab_size_));
    }
    mask_.assign(words, words + num_words);
    mask_.resize(static_cast<size_t>(expected), 0);
    if (vocab_size_ % 32 != 0) mask_.back() &= (1u << (vocab_size_ % 32)) - 1;
    if (std::all_of(mask_.begin(), mask_.end(), [](uint32_t word) { return word == 0; })) {
        mask_.clear();
        throw UsageError("sampling: the mask allows no token");
    }
}

bool Sampler::adjusts_logits() const {
    return !params_.logit_bias.empty() || !output_counts_.empty() || !mask_.empty();
}

void Sampler::adjust(const float* logits, float* adjusted) const {
    std::memcpy(adjusted, logits, static_cast<size_t>(vocab_size_) * sizeof(float));
    for (const auto& [token, bias] : params_.logit_bias) adjusted[token] += bias;
    for (const auto& [token, times] : output_counts_) {
        float value = adjusted[token];
        value = value > 0.0f ? value / params_.repetition_penalty : value * params_.repetition_penalty;
        if (times > 0) value -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(times);
        adjusted[token] = std::clamp(value, -FLT_MAX, FLT_MAX);
    }
    if (!mask_.empty()) apply_mask(adjusted);
}

void Sampler::apply_mask(float* adjusted) const {
    for (int64_t begin = 0; begin < vocab_size_; begin += 32) {
        const uint32_t allowed = mask_[static_cast<size_t>(begin / 32)];
        if (allowed == 0xffffffffu) continue;
        const int64_t end = std::min<int64_t>(begin + 32, vocab_size_);
        for (int64_t token = begin; token < end; ++token) {
            if ((allowed >> (token - begin) & 1u) == 0) adjusted[token] = -FLT_MAX;
        }
    }
}

int32_t Sampler::draw(const float* logits, float max_logit, float* weights) const {
    // Bounded, or a temperature next to zero would turn the peak's 0 * infinity into NaN.
    const auto scale = static_cast<float>(std::min(1.0 / params_.temperature, static_cast<double>(FLT_MAX)));
    for (int64_t i = 0; i < vocab_size_; ++i) weights[i] = exp_nonpositive((logits[i] - max_logit) * scale);
    if (params_.top_k > 0 && params_.top_k < vocab_size_) {
        apply_cut(weights, vocab_size_, find_cut<false>(weights, vocab_size_, params_.top_k));
    }
    if (params_.min_p > 0.0f) {
        const float floor = params_.min_p;  // the peak weighs 1
        for (int64_t i = 0; i < vocab_size_; ++i) weights[i] = weights[i] >= floor ? weights[i] : 0.0f;
    }
    if (params_.top_p < 1.0f) {
        const double target = params_.top_p * total_weight(weights, vocab_size_);
        apply_cut(weights, vocab_size_, find_cut<true>(weights, vocab_size_, target));
    }
    return static_cast<int32_t>(pick(weights, vocab_size_, uniform_at(params_.seed, num_accepted_)));
}

SampleResult Sampler::sample(const float* logits, float* scratch) const {
    SampleResult result;
    const Peak raw_peak = find_peak(logits, vocab_size_);
    if (!raw_peak.finite) {
        result.bad_logits = true;
        return result;
    }
    const float* adjusted = logits;
    Peak peak = raw_peak;
    if (adjusts_logits()) {
        adjust(logits, scratch);
        adjusted = scratch;
        peak = find_peak(adjusted, vocab_size_);
    }
    const bool greedy = params_.temperature == 0.0f || params_.top_k == 1 || params_.min_p == 1.0f;
    result.token = greedy ? static_cast<int32_t>(peak.index) : draw(adjusted, peak.value, scratch);
    if (params_.num_logprobs >= 0) {
        const double log_total = log_sum_exp(logits, vocab_size_, raw_peak.value);
        result.logprob = static_cast<float>(logits[result.token] - log_total);
        result.top_logprobs = most_likely(logits, vocab_size_, params_.num_logprobs, log_total);
    }
    return result;
}

}  // namespace treadle

// Sampling of one token from one row of logits. A Sampler belongs to one request; sample() is a pure function of the
// logits, the request's own history and its seed, so neither neighbours in the batch nor recomputation change a result.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace treadle {

// Applied in this order: logit bias, repetition penalty, presence and frequency penalty, mask, temperature, top-k,
// min-p, top-p. Each filter looks at the distribution the earlier ones left. Equally likely tokens rank by id, lowest
// first.
struct SamplingParams {
    float temperature = 1.0f;         // [0, 100]; 0 = greedy: the most likely token whatever the filters and the seed
    int32_t top_k = 0;                // <= 0 = off
    float top_p = 1.0f;               // (0, 1]; 1 = off
    float min_p = 0.0f;               // [0, 1]; 0 = off, 1 = the most likely token only
    float repetition_penalty = 1.0f;  // [0.01, 100], over prompt and output (Keskar et al. 2019); 1 = off
    float presence_penalty = 0.0f;    // [-2, 2], over output only, as the OpenAI API defines it
    float frequency_penalty = 0.0f;   // [-2, 2], over output only
    uint64_t seed = 0;
    int32_t num_logprobs = -1;  // [-1, 20]; -1 = none, 0 = the sampled token only, n = also the n most likely
    std::vector<std::pair<int32_t, float>> logit_bias;  // [-100, 100] added to the logit of a token
};

struct SampleResult {
    int32_t token = -1;  // -1: the logits held NaN or infinity, `bad_logits` is set
    bool bad_logits = false;
    float logprob = 0.0f;  // natural log, of the model's own distribution: before penalties, bias and temperature
    std::vector<std::pair<int32_t, float>> top_logprobs;  // most likely first
};

class Sampler {
 public:
    // Throws UsageError for parameters out of range or token ids outside the vocabulary.
    Sampler(SamplingParams params, int32_t vocab_size);

    void add_prompt(const int32_t* tokens, int64_t count);  // for the repetition penalty
    void accept(int32_t token);                             // one output token: counts, and the random stream advances
    // Bit i % 32 of word i / 32 says whether token i may come next; tokens past the last word may not, as the rows of
    // some models are longer than their vocabulary. No words at all allow every token. Stays until replaced.
    // Throws UsageError when there are more words than the vocabulary needs, or no token is allowed.
    void set_mask(const uint32_t* words, int64_t num_words);
    const SamplingParams& params() const { return params_; }
    int32_t vocab_size() const { return vocab_size_; }

    // scratch: vocab_size floats the call may overwrite; logits may not alias it.
    SampleResult sample(const float* logits, float* scratch) const;

 private:
    bool adjusts_logits() const;
    void adjust(const float* logits, float* adjusted) const;
    void apply_mask(float* adjusted) const;
    int32_t draw(const float* logits, float max_logit, float* weights) const;
    void check_token(int32_t token, const char* what) const;

    SamplingParams params_;
    int32_t vocab_size_;
    std::vector<uint32_t> mask_;
    bool uses_history_ = false;
    std::unordered_map<int32_t, int32_t>
        output_counts_;  // token seen so far -> times in the output (0: only in the prompt)
    int64_t num_accepted_ = 0;
};

}  // namespace treadle

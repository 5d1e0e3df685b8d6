// Sampling of one token from one row of logits. A Sampler belongs to one request; sample() is a pure function of the logits,
// the request's own history and its seed, so neither neighbours in the batch nor recomputation change a result.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace treadle {

struct SamplingParams {
    float temperature = 1.0f;         // 0 = greedy
    int32_t top_k = 0;                // <= 0 = off
    float top_p = 1.0f;               // 1 = off
    float min_p = 0.0f;               // 0 = off
    float repetition_penalty = 1.0f;  // over prompt and output (Keskar et al. 2019); 1 = off
    float presence_penalty = 0.0f;    // over output only, as the OpenAI API defines it
    float frequency_penalty = 0.0f;   // over output only
    uint64_t seed = 0;
    int32_t num_logprobs = -1;  // -1 = none, 0 = the sampled token only, n = also the n most likely
    std::vector<std::pair<int32_t, float>> logit_bias;
};

struct SampleResult {
    int32_t token = -1;  // -1: the logits held NaN or infinity, `bad_logits` is set
    bool bad_logits = false;
    float logprob = 0.0f;  // natural log, of the model's own distribution: before penalties, bias and temperature
    std::vector<std::pair<int32_t, float>> top_logprobs;
};

class Sampler {
   public:
    // Throws UsageError for parameters out of range or token ids outside the vocabulary.
    Sampler(SamplingParams params, int32_t vocab_size);

    void add_prompt(const int32_t* tokens, int64_t count);  // for the repetition penalty
    void accept(int32_t token);                             // one output token: counts, and the random stream advances
    const SamplingParams& params() const { return params_; }
    int32_t vocab_size() const { return vocab_size_; }

    // scratch: vocab_size floats the call may overwrite; logits may not alias it.
    SampleResult sample(const float* logits, float* scratch) const;

   private:
    SamplingParams params_;
    int32_t vocab_size_;
    std::vector<int32_t> output_counts_;  // token -> times in the output, empty while unused
    std::vector<uint8_t> seen_;           // token -> in prompt or output, empty while unused
    int64_t num_accepted_ = 0;
};

}  // namespace treadle

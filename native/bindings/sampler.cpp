// Python's view of the sampler.
#include "treadle/sampler.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "module.h"
#include "treadle/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle::bindings {
namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bias = std::vector<std::pair<int32_t, float>>;

void init(Sampler* self, int32_t vocab_size, float temperature, int32_t top_k, float top_p, float min_p,
          float repetition_penalty, float presence_penalty, float frequency_penalty, uint64_t seed,
          int32_t num_logprobs, Bias logit_bias) {
    SamplingParams params;
    params.temperature = temperature;
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    params.repetition_penalty = repetition_penalty;
    params.presence_penalty = presence_penalty;
    params.frequency_penalty = frequency_penalty;
    params.seed = seed;
    params.num_logprobs = num_logprobs;
    params.logit_bias = std::move(logit_bias);
    new (self) Sampler(std::move(params), vocab_size);
}

SampleResult sample(const Sampler& self, Logits logits) {
    if (logits.shape(0) != static_cast<size_t>(self.vocab_size())) {
        throw UsageError("sampling: " + std::to_string(logits.shape(0)) + " logits for a vocabulary of " +
                         std::to_string(self.vocab_size()));
    }
    std::vector<float> scratch(logits.shape(0));
    return self.sample(logits.data(), scratch.data());
}

}  // namespace

void bind_sampler(nb::module_& m) {
    nb::class_<SampleResult>(m, "SampleResult")
        .def_ro("token", &SampleResult::token)
        .def_ro("bad_logits", &SampleResult::bad_logits)
        .def_ro("logprob", &SampleResult::logprob)
        .def_ro("top_logprobs", &SampleResult::top_logprobs);
    nb::class_<Sampler>(m, "Sampler")
        .def("__init__", &init, "vocab_size"_a, nb::kw_only(), "temperature"_a = 1.0f, "top_k"_a = 0, "top_p"_a = 1.0f,
             "min_p"_a = 0.0f, "repetition_penalty"_a = 1.0f, "presence_penalty"_a = 0.0f, "frequency_penalty"_a = 0.0f,
             "seed"_a = 0, "num_logprobs"_a = -1, "logit_bias"_a = Bias{})
        .def(
            "add_prompt",
            [](Sampler& self, Tokens tokens) { self.add_prompt(tokens.data(), static_cast<int64_t>(tokens.shape(0))); },
            "tokens"_a)
        .def("accept", &Sampler::accept, "token"_a)
        .def(
            "set_mask",
            [](Sampler& self, std::optional<Mask> mask) {
                if (mask.has_value() && mask->shape(0) > 0) {
                    self.set_mask(mask->data(), static_cast<int64_t>(mask->shape(0)));
                } else if (mask.has_value()) {
                    throw UsageError("sampling: a mask of no words; None allows every token");
                } else {
                    self.set_mask(nullptr, 0);
                }
            },
            "mask"_a.none(),
            "Allow the tokens whose bits are set, lowest bit first, until replaced; None allows all. "
            "The words are copied.")
        .def("sample", &sample, "logits"_a);
}

}  // namespace treadle::bindings

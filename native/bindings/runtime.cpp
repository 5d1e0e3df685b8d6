// Model and Runtime for Python. A step crosses here once, with the GIL released.
#include "treadle/runtime.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "module.h"
#include "treadle/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace treadle::bindings {
const KernelTable* choose_kernels(const std::string& isa) {
    const KernelTable* kernels = find_kernels(isa.c_str());
    if (kernels != nullptr) return kernels;
    std::string names;
    for (const char* const* name = runnable_isas(); *name != nullptr; ++name)
        names += (names.empty() ? "" : ", ") + std::string(*name);
    throw UsageError("no kernels for instruction set \"" + isa + "\" on this CPU, expected one of: " + names);
}

namespace {

using Int32Array = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteBuffer = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sum = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowSum = std::tuple<int64_t, int64_t, Sum>;  // first row, number of rows, where their states are added
using LogitArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

struct StepOutput {
    std::vector<SampleResult> samples;
    std::optional<LogitArray> logits;
};

KvType kv_type_of(const std::string& name) {
    if (name == "f16") return KvType::kF16;
    if (name == "q8_0") return KvType::kQ8_0;
    throw UsageError("kv_type is \"" + name + "\", expected f16 or q8_0");
}

using Progress = std::function<void(uint64_t, uint64_t)>;

// Calls on ten times a second and at the end. Each call takes the GIL, and a loader that waited for it after every
// piece would stand still while Python builds a tokenizer.
Progress throttled(Progress progress) {
    using Clock = std::chrono::steady_clock;
    return [progress = std::move(progress), last = Clock::now()](uint64_t done, uint64_t total) mutable {
        const Clock::time_point now = Clock::now();
        if (done < total && now - last < std::chrono::milliseconds(100)) return;
        last = now;
        progress(done, total);
    };
}

std::shared_ptr<Model> load_model(const GgufFile& file, const std::string& isa, std::vector<int> cpus,
                                  nb::object progress, int64_t context_length,
                                  const std::vector<std::tuple<int, std::vector<int>>>& copies) {
    LoadOptions options;
    options.kernels = choose_kernels(isa);
    options.cpus = std::move(cpus);
    options.context_length = context_length;
    for (const auto& [node, copy_cpus] : copies) options.copies.push_back({node, copy_cpus});
    if (!progress.is_none()) {
        options.progress = throttled([&progress](uint64_t done, uint64_t total) {
            const nb::gil_scoped_acquire gil;
            progress(done, total);
        });
    } else {
        options.progress = throttled([](uint64_t, uint64_t) {
            const nb::gil_scoped_acquire gil;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C ends a long load
        });
    }
    const nb::gil_scoped_release release;
    return Model::load(file, options);
}

LogitArray new_logits(size_t rows, size_t vocab_size) {
    auto* data = new float[rows * vocab_size];
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return LogitArray(data, {rows, vocab_size}, owner);
}

std::vector<StateSum> state_sums_of(const Runtime& runtime, const std::vector<RowSum>& row_sums) {
    std::vector<StateSum> sums;
    for (const auto& [first_row, num_rows, sum] : row_sums) {
        const auto state_size = static_cast<size_t>(runtime.model().state_size());
        if (sum.size() != state_size) {
            throw UsageError("step: state sum " + std::to_string(sums.size()) + " has " + std::to_string(sum.size()) +
                             " values, a state has " + std::to_string(state_size));
        }
        sums.push_back({first_row, num_rows, sum.data()});
    }
    return sums;
}

StepOutput run_step(Runtime& runtime, const Int32Array& token_ids, const Int32Array& query_lens,
                    const Int32Array& start_positions, const Int32Table& block_tables, const Int32Array& logit_rows,
                    const std::vector<const Sampler*>& samplers, bool return_logits,
                    const std::vector<RowSum>& row_sums, const std::vector<const Adapter*>& adapters) {
    const size_t num_sequences = query_lens.shape(0);
    const size_t num_groups = num_sequences == block_tables.shape(0) ? 1 : runtime.kv_groups().size();
    if (start_positions.shape(0) != num_sequences || block_tables.shape(0) != num_groups * num_sequences) {
        throw UsageError("step: query_lens has " + std::to_string(num_sequences) + " sequences, start_positions " +
                         std::to_string(start_positions.shape(0)) + ", block_tables " +
                         std::to_string(block_tables.shape(0)));
    }
    if (!adapters.empty() && adapters.size() != num_sequences) {
        throw UsageError("step: " + std::to_string(adapters.size()) + " adapters for " + std::to_string(num_sequences) +
                         " sequences");
    }
    if (samplers.size() != logit_rows.shape(0)) {
        throw UsageError("step: " + std::to_string(samplers.size()) + " samplers for " +
                         std::to_string(logit_rows.shape(0)) + " logit rows");
    }
    StepInput input;
    input.token_ids = token_ids.data();
    input.num_tokens = static_cast<int64_t>(token_ids.shape(0));
    input.query_lens = query_lens.data();
    input.start_positions = start_positions.data();
    input.num_sequences = static_cast<int64_t>(num_sequences);
    input.block_tables = block_tables.data();
    input.table_width = static_cast<int64_t>(block_tables.shape(1));
    input.group_stride = num_groups == 1 ? 0 : input.num_sequences * input.table_width;
    input.logit_rows = logit_rows.data();
    input.num_logit_rows = static_cast<int64_t>(logit_rows.shape(0));
    input.samplers = samplers.data();
    input.adapters = adapters.empty() ? nullptr : adapters.data();
    const std::vector<StateSum> state_sums = state_sums_of(runtime, row_sums);
    input.state_sums = state_sums.data();
    input.num_state_sums = static_cast<int64_t>(state_sums.size());
    StepOutput output;
    output.samples.resize(samplers.size());
    if (return_logits) {
        output.logits = new_logits(samplers.size(), static_cast<size_t>(runtime.model().config().vocab_size));
        input.logits = output.logits->data();
    }
    const nb::gil_scoped_release release;
    runtime.step(input, output.samples.data());
    return output;
}

// The blocks of one group of layers; keeps their runtime alive.
struct KvBlocks {
    nb::object owner;
    Runtime* runtime;
    size_t group;

    const KvGroup& facts() const { return runtime->kv_groups()[group]; }
};

std::vector<KvBlocks> kv_blocks_of(const nb::object& owner) {
    auto* runtime = nb::cast<Runtime*>(owner);
    std::vector<KvBlocks> all;
    for (size_t group = 0; group < runtime->kv_groups().size(); ++group) all.push_back({owner, runtime, group});
    return all;
}

void expect_block_bytes(const KvBlocks& blocks, const char* what, size_t found) {
    if (found == blocks.facts().block_bytes) return;
    throw UsageError(std::string(what) + " has " + std::to_string(found) + " bytes, a KV block has " +
                     std::to_string(blocks.facts().block_bytes));
}

void read_kv_block(const KvBlocks& blocks, int64_t block_id, const ByteBuffer& out) {
    expect_block_bytes(blocks, "read_kv_block: out", out.size());
    const nb::gil_scoped_release release;
    blocks.runtime->read_kv_block(blocks.group, block_id, out.data());
}

void write_kv_block(const KvBlocks& blocks, int64_t block_id, const Bytes& data) {
    expect_block_bytes(blocks, "write_kv_block: data", data.size());
    const nb::gil_scoped_release release;
    blocks.runtime->write_kv_block(blocks.group, block_id, data.data());
}

void copy_kv_block(const KvBlocks& blocks, int64_t from, int64_t to) {
    const nb::gil_scoped_release release;
    blocks.runtime->copy_kv_block(blocks.group, from, to);
}

using BlockCounts = std::variant<int64_t, std::vector<int64_t>>;

std::vector<int64_t> counts_of(const BlockCounts& counts) {
    if (const auto* one = std::get_if<int64_t>(&counts)) return {*one};
    return std::get<std::vector<int64_t>>(counts);
}

void bind_kv_blocks(nb::module_& m) {
    nb::class_<KvBlocks>(m, "KvBlocks", "The KV blocks of the layers of one runtime that see equally far back.")
        .def("read_kv_block", &read_kv_block, "block_id"_a, "out"_a,
             "Copy a block's bytes into a writable uint8 buffer, with the GIL released. Like write_kv_block and "
             "copy_kv_block, may run during a step that does not use the block.")
        .def("write_kv_block", &write_kv_block, "block_id"_a, "data"_a,
             "Replace a block's bytes by those of a uint8 buffer that read_kv_block filled under the same kv_layout.")
        .def("copy_kv_block", &copy_kv_block, "src"_a, "dst"_a, "Copy block `src` over block `dst`.")
        .def_prop_ro(
            "window", [](const KvBlocks& blocks) { return blocks.facts().window; },
            "Positions that a token sees in these layers, itself included; 0 for all before it.")
        .def_prop_ro("num_blocks", [](const KvBlocks& blocks) { return blocks.facts().num_blocks; })
        .def_prop_ro(
            "kv_block_bytes", [](const KvBlocks& blocks) { return blocks.facts().block_bytes; },
            "Bytes of one KV block over all layers of the group.")
        .def_prop_ro(
            "kv_layout", [](const KvBlocks& blocks) { return blocks.facts().layout; },
            "What gives a block's bytes their meaning; the same for every kernel table.");
}

}  // namespace

void bind_runtime(nb::module_& m) {
    m.attr("KV_BLOCK_TOKENS") = static_cast<int>(kKvBlockTokens);

    m.def("trim_heap", &trim_heap, nb::call_guard<nb::gil_scoped_release>(),
          "Give memory that was freed back to the system.");

    nb::class_<Model>(m, "Model", "Packed weights of one model file.")
        .def_static("load", &load_model, "gguf"_a, nb::kw_only(), "isa"_a = "", "cpus"_a, "progress"_a = nb::none(),
                    "context_length"_a = 0, "copies"_a = std::vector<std::tuple<int, std::vector<int>>>(),
                    "Read, check and pack a model; `progress(bytes_done, bytes_total)` is called now and then. "
                    "`context_length`, 0 for the model's own, chooses between factors for short and long contexts. "
                    "`copies` are memory nodes that each get a copy of all weights, with the CPUs that read it; by "
                    "default there is one copy, wherever the system puts it.")
        .def_static("check", &Model::check, "gguf"_a,
                    "Raise ModelFileError, or UnsupportedModelError, if this core could not load the file.")
        .def_prop_ro("isa", [](const Model& model) { return std::string(model.kernels().isa); })
        .def_prop_ro("architecture", [](const Model& model) { return model.config().architecture; })
        .def_prop_ro("num_layers", [](const Model& model) { return model.config().num_layers; })
        .def_prop_ro("hidden_size", [](const Model& model) { return model.config().hidden_size; })
        .def_prop_ro("state_size", &Model::state_size, "Numbers of a state that leaves the model.")
        .def_prop_ro("vocab_size", [](const Model& model) { return model.config().vocab_size; })
        .def_prop_ro("num_heads", [](const Model& model) { return model.config().num_heads; })
        .def_prop_ro("num_kv_heads", [](const Model& model) { return model.config().num_kv_heads; })
        .def_prop_ro("head_dim", [](const Model& model) { return model.config().head_dim; })
        .def_prop_ro("context_length", [](const Model& model) { return model.config().context_length; })
        .def_prop_ro("weight_bytes", &Model::weight_bytes, "Bytes of packed weights in memory.")
        .def_prop_ro(
            "weight_address", [](const Model& model) { return reinterpret_cast<uintptr_t>(model.weights().data()); },
            "Where they begin, copy after copy: for tools that ask the system on which node a page is.")
        .def_prop_ro("decode_bytes", &Model::decode_bytes, "Weight bytes read for one decoded token.")
        .def("lock_memory", &Model::lock_memory, "Keep the weights in RAM; returns 0 or the errno of mlock.");

    nb::class_<Adapter>(m, "Adapter", "A low-rank adapter (LoRA) of one loaded model.")
        .def_static(
            "load",
            [](const GgufFile& file, std::shared_ptr<Model> model, const std::vector<int>& cpus, float strength) {
                const nb::gil_scoped_release release;
                return Adapter::load(file, std::move(model), cpus, strength);
            },
            "gguf"_a, "model"_a, nb::kw_only(), "cpus"_a, "strength"_a = 1.0f,
            "Read and check an adapter; `strength` multiplies the scale that its file gives.")
        .def_prop_ro("num_bytes", &Adapter::num_bytes, "Bytes in memory.");

    nb::class_<StepOutput>(m, "StepOutput", "What one step produced, in the order of its logit rows.")
        .def_ro("samples", &StepOutput::samples)
        .def_prop_ro("logits", [](const StepOutput& output) { return output.logits; }, nb::rv_policy::reference);

    nb::class_<OperatorTiming>(m, "OperatorTiming", "Where the time of one operator went, one entry per worker.")
        .def_ro("name", &OperatorTiming::name)
        .def_ro("num_calls", &OperatorTiming::num_calls, "Once per layer and step.")
        .def_ro("bytes", &OperatorTiming::bytes, "Bytes of weights or KV blocks read, all workers together.")
        .def_ro("operations", &OperatorTiming::operations, "Multiplications and additions, all workers together.")
        .def_ro("busy_seconds", &OperatorTiming::busy_seconds)
        .def_ro("wait_seconds", &OperatorTiming::wait_seconds, "Seconds at barriers.");

    nb::class_<StepTimings>(m, "StepTimings", "Where the time of steps went.")
        .def_ro("num_steps", &StepTimings::num_steps)
        .def_ro("seconds", &StepTimings::seconds, "Seconds inside the steps.")
        .def_ro("operators", &StepTimings::operators);

    bind_kv_blocks(m);
    nb::class_<Runtime>(m, "Runtime", "Worker threads, KV blocks and scratch memory that run steps of one model.")
        .def(
            "__init__",
            [](Runtime* self, std::shared_ptr<Model> model, std::vector<int> cpus, const BlockCounts& num_blocks,
               int64_t max_batch_tokens, const std::string& kv_type) {
                new (self) Runtime(std::move(model), std::move(cpus), counts_of(num_blocks), max_batch_tokens,
                                   kv_type_of(kv_type));
            },
            "model"_a, nb::kw_only(), "cpus"_a, "num_blocks"_a, "max_batch_tokens"_a = 512, "kv_type"_a = "f16")
        .def("step", &run_step, "token_ids"_a, "query_lens"_a, "start_positions"_a, "block_tables"_a, "logit_rows"_a,
             "samplers"_a, "return_logits"_a = false, "state_sums"_a = std::vector<RowSum>(),
             "adapters"_a = std::vector<const Adapter*>(),
             "Run one step with the GIL released; see StepInput in runtime.h. `block_tables` has one row for each "
             "sequence, or for each sequence of each group of KV blocks, group after group. `state_sums` are of first "
             "row, number of rows and the float64 array of state_size to which their states are added. `adapters` has "
             "one entry for each sequence, None for the model as it is, or none at all.")
        .def_prop_ro("kv_type",
                     [](const Runtime& runtime) { return runtime.kv_type() == KvType::kF16 ? "f16" : "q8_0"; })
        .def_prop_ro("kv_blocks", &kv_blocks_of,
                     "The blocks of layers that see everything, then those of layers with a window; of models with one "
                     "kind only that one.")
        .def("set_cpus", &Runtime::set_cpus, "cpus"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Replace the worker threads, between steps.")
        .def("set_sitting_out", &Runtime::set_sitting_out, "on"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Whether threads whose CPUs are busy with other programs sit out, as they do at first.")
        .def("set_timing", &Runtime::set_timing, "on"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Start timing operators from zero, or stop; costs nothing while off.")
        .def("timings", &Runtime::timings, nb::call_guard<nb::gil_scoped_release>(),
             "What was timed since set_timing(True) or set_cpus(); empty while off.")
        .def_prop_ro("num_threads", &Runtime::num_threads)
        .def_prop_ro("num_present", &Runtime::num_present,
                     "Of the threads, those that take part; others sit out while their CPUs are busy. Between steps.")
        .def_prop_ro("max_batch_tokens", &Runtime::max_batch_tokens)
        .def("lock_memory", &Runtime::lock_memory,
             "Keep KV blocks and scratch in RAM; returns 0 or the errno of mlock.");
}

}  // namespace treadle::bindings

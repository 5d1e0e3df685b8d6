// From file to panels: the tensors are planned and checked (tensor_plan.h), then all workers read and pack.
//
// Data is read with pread in pieces of a few MiB into a buffer per worker, so peak memory is the packed weights plus
// those buffers, reading and packing overlap, and a file that shrinks underneath us is an error and not a SIGBUS.
#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <mutex>

#include "config.h"
#include "refuse.h"
#include "rope.h"
#include "tensor_plan.h"
#include "treadle/model.h"
#include "treadle/thread_pool.h"

namespace treadle {
namespace {

uint64_t feed_forward_bytes(const FeedForward& weights) {
    return weights.gate.num_bytes() + weights.up.num_bytes() + weights.down.num_bytes();
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // Shift into the f32 fields and let a multiplication by 2^112 mend the exponent, subnormals included.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

}  // namespace

class WeightLoader {
 public:
    WeightLoader(const GgufFile& file, const LoadOptions& options, const Family& family, Model& model)
        : file_(file), options_(options), family_(family), model_(model), plan_(file) {}

    void check() {
        plan();
        plan_.refuse_unused_tensors(model_.config_.architecture);
    }

    void load() {
        check();
        model_.weights_ = PageBuffer(plan_.num_bytes(), "the weights of " + printable(file_.path()));
        for (const auto& [matrix, offset] : plan_.matrices()) matrix->data = model_.weights_.data() + offset;
        if (!plan_.has(kOutput)) model_.output_ = model_.token_embedding_;
        read_vectors();
        read_matrices();
    }

 private:
    static constexpr const char* kOutput = "output.weight";  // absent where the embedding serves for it, too

    void plan() {
        ModelConfig& config = model_.config_;
        const GgufTensor& embedding = plan_.require("token_embd.weight");
        if (embedding.shape.size() != 2 || embedding.shape[1] < 1 || embedding.shape[1] > (1u << 24)) {
            refuse(file_, "tensor token_embd.weight has shape " + shape_text(embedding.shape) +
                              ", expected [embedding_length, vocabulary size]");
        }
        config.vocab_size = static_cast<int32_t>(embedding.shape[1]);
        check_vocabulary();
        plan_.matrix("token_embd.weight", config.vocab_size, config.hidden_size, model_.token_embedding_);
        plan_.vector("output_norm.weight", config.hidden_size, &model_.output_norm_);
        if (plan_.has(kOutput)) plan_.matrix(kOutput, config.vocab_size, config.hidden_size, model_.output_);
        for (const char* name : {kRopeFactors, kLongRopeFactors, kShortRopeFactors}) plan_.mark_used(name);
        model_.layers_.resize(static_cast<size_t>(config.num_layers));
        for (int32_t i = 0; i < config.num_layers; ++i) {
            family_.plan_layer(plan_, config, "blk." + std::to_string(i) + ".", model_.layers_[i]);
        }
    }

    void check_vocabulary() const {
        const GgufValue* tokens = file_.find("tokenizer.ggml.tokens");
        if (tokens == nullptr) return;
        const auto* array = std::get_if<std::shared_ptr<GgufArray>>(tokens);
        const auto* strings = array ? std::get_if<std::vector<std::string_view>>(&(*array)->items) : nullptr;
        if (strings == nullptr) refuse(file_, "tokenizer.ggml.tokens is not an array of strings");
        if (strings->size() > static_cast<size_t>(model_.config_.vocab_size)) {
            refuse(file_, "the vocabulary has " + std::to_string(strings->size()) +
                              " tokens, but token_embd.weight has only " + std::to_string(model_.config_.vocab_size) +
                              " rows");
        }
    }

    void read_vectors() {
        for (const TensorPlan::Vector& vector : plan_.vectors()) {
            const auto first = static_cast<size_t>(vector.first), count = static_cast<size_t>(vector.count);
            float* out = reinterpret_cast<float*>(model_.weights_.data() + vector.offset);
            *vector.target = out;
            if (vector.tensor->format == kF32) {
                file_.read(*vector.tensor, first * sizeof(float), count * sizeof(float),
                           reinterpret_cast<uint8_t*>(out));
                continue;
            }
            std::vector<uint16_t> halves(count);
            file_.read(*vector.tensor, first * sizeof(uint16_t), count * sizeof(uint16_t),
                       reinterpret_cast<uint8_t*>(halves.data()));
            for (size_t i = 0; i < count; ++i) {
                out[i] = vector.tensor->format == kF16 ? half_to_float(halves[i])
                                                       : std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
            }
        }
    }

    void read_matrices() {
        ThreadPool pool(options_.cpus);
        const uint64_t total = plan_.total_file_bytes();
        pool.run([&](int worker) {
            std::vector<uint8_t> buffer;
            pool.share(worker, static_cast<int64_t>(plan_.pieces().size()), 1, [&](int64_t begin, int64_t) {
                if (failed_.load(std::memory_order_relaxed)) return;
                try {
                    read_piece(plan_.pieces()[static_cast<size_t>(begin)], buffer);
                    // Only the loading thread may call back: it is the one that holds the caller's context.
                    if (worker == 0 && options_.progress) options_.progress(file_bytes_read_, total);
                } catch (...) {
                    const std::lock_guard<std::mutex> guard(failure_mutex_);
                    if (!failed_.exchange(true)) failure_ = std::current_exception();
                }
            });
        });
        if (failure_) std::rethrow_exception(failure_);
        if (options_.progress) options_.progress(total, total);
    }

    void read_piece(const TensorPlan::Piece& piece, std::vector<uint8_t>& buffer) {
        const Matrix& matrix = *piece.matrix;
        const int64_t bytes_per_row = row_bytes(matrix);
        const int64_t first_row = piece.first_panel * kPanelRows;
        const int64_t num_rows = std::min<int64_t>(piece.num_panels * kPanelRows, matrix.rows - first_row);
        buffer.resize(static_cast<size_t>(num_rows * bytes_per_row));
        file_.read(*piece.tensor, piece.file_offset + static_cast<uint64_t>(first_row * bytes_per_row), buffer.size(),
                   buffer.data());
        for (int64_t p = 0; p < piece.num_panels; ++p) {
            const int64_t rows = std::min<int64_t>(kPanelRows, num_rows - p * kPanelRows);
            pack_panel(matrix.format, buffer.data() + p * kPanelRows * bytes_per_row, bytes_per_row,
                       static_cast<int32_t>(rows), matrix.columns,
                       matrix.data + (piece.first_panel + p) * matrix.panel_bytes);
        }
        file_bytes_read_ += buffer.size();
    }

    const GgufFile& file_;
    const LoadOptions& options_;
    const Family& family_;
    Model& model_;
    TensorPlan plan_;
    std::atomic<uint64_t> file_bytes_read_{0};
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

std::shared_ptr<Model> Model::load(const GgufFile& file, const LoadOptions& options) {
    auto model = std::make_shared<Model>();
    FileConfig read = read_config(file, options.context_length);
    model->config_ = std::move(read.config);
    model->kernels_ = options.kernels;
    WeightLoader(file, options, *read.family, *model).load();
    return model;
}

bool Model::has_post_norms() const {
    return std::ranges::any_of(layers_, [](const LayerWeights& layer) {
        return layer.post_attention_norm != nullptr || layer.post_feed_forward_norm != nullptr;
    });
}

void Model::check(const GgufFile& file) {
    Model model;
    FileConfig read = read_config(file, 0);
    model.config_ = std::move(read.config);
    WeightLoader(file, {}, *read.family, model).check();
}

uint64_t Model::decode_bytes() const {
    uint64_t total = output_.num_bytes();
    const auto used = static_cast<size_t>(config_.experts.used);
    for (const LayerWeights& layer : layers_) {
        for (const Matrix* matrix :
             {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.mixture.router}) {
            total += matrix->num_bytes();
        }
        total += feed_forward_bytes(layer.feed_forward);
        const std::vector<FeedForward>& experts = layer.mixture.experts;
        // The shared expert is the last one.
        for (size_t i = 0; i < experts.size(); ++i) {
            const bool is_read = i < used || i >= static_cast<size_t>(config_.experts.count);
            if (is_read) total += feed_forward_bytes(experts[i]);
        }
    }
    return total;
}

}  // namespace treadle

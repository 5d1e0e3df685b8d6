// From file to panels: plan and check every tensor, then read and pack with all workers.
//
// Data is read with pread in pieces of a few MiB into a buffer per worker, so peak memory is the packed weights plus
// those buffers, reading and packing overlap, and a file that shrinks underneath us is an error and not a SIGBUS.
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <set>

#include "refuse.h"
#include "treadle/model.h"
#include "treadle/thread_pool.h"

namespace treadle {
namespace {

constexpr uint64_t kPieceBytes = 4u << 20;

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
    WeightLoader(const GgufFile& file, const LoadOptions& options, Model& model)
        : file_(file), options_(options), model_(model) {}

    void load() {
        plan();
        refuse_unused_tensors();
        model_.weights_ = PageBuffer(num_bytes_, "the weights of " + printable(file_.path()));
        for (const auto& [matrix, offset] : matrices_) matrix->data = model_.weights_.data() + offset;
        if (tied_) model_.output_ = model_.token_embedding_;
        read_vectors();
        read_matrices();
    }

 private:
    struct Vector {
        const GgufTensor* tensor;
        const float** target;
        size_t offset;
    };
    struct Piece {  // panels of one matrix that one worker reads at once
        const GgufTensor* tensor;
        const Matrix* matrix;
        int64_t first_panel, num_panels;
    };

    void plan() {
        const ModelConfig& config = model_.config_;
        const GgufTensor& embedding = require("token_embd.weight");
        if (embedding.shape.size() != 2 || embedding.shape[1] < 1 || embedding.shape[1] > (1u << 24)) {
            refuse(file_, "tensor token_embd.weight has shape " + shape_text(embedding) +
                              ", expected [embedding_length, vocabulary size]");
        }
        model_.config_.vocab_size = static_cast<int32_t>(embedding.shape[1]);
        check_vocabulary();
        add_matrix("token_embd", config.vocab_size, config.hidden_size, model_.token_embedding_);
        add_vector("output_norm.weight", config.hidden_size, &model_.output_norm_);
        tied_ = file_.tensor("output.weight") == nullptr;
        if (!tied_) add_matrix("output", config.vocab_size, config.hidden_size, model_.output_);
        used_.insert("rope_freqs.weight");
        model_.layers_.resize(static_cast<size_t>(config.num_layers));
        for (int32_t i = 0; i < config.num_layers; ++i) plan_layer("blk." + std::to_string(i) + ".", model_.layers_[i]);
    }

    void plan_layer(const std::string& prefix, LayerWeights& layer) {
        const ModelConfig& config = model_.config_;
        add_vector(prefix + "attn_norm.weight", config.hidden_size, &layer.attention_norm);
        add_matrix(prefix + "attn_q", config.query_size(), config.hidden_size, layer.query);
        add_matrix(prefix + "attn_k", config.kv_size(), config.hidden_size, layer.key);
        add_matrix(prefix + "attn_v", config.kv_size(), config.hidden_size, layer.value);
        add_matrix(prefix + "attn_output", config.hidden_size, config.query_size(), layer.attention_output);
        add_bias(prefix + "attn_q.bias", config.needs_qkv_bias, config.query_size(), &layer.query_bias);
        add_bias(prefix + "attn_k.bias", config.needs_qkv_bias, config.kv_size(), &layer.key_bias);
        add_bias(prefix + "attn_v.bias", config.needs_qkv_bias, config.kv_size(), &layer.value_bias);
        add_bias(prefix + "attn_output.bias", false, config.hidden_size, &layer.attention_output_bias);
        add_vector(prefix + "ffn_norm.weight", config.hidden_size, &layer.feed_forward_norm);
        add_matrix(prefix + "ffn_gate", config.feed_forward_size, config.hidden_size, layer.gate);
        add_matrix(prefix + "ffn_up", config.feed_forward_size, config.hidden_size, layer.up);
        add_matrix(prefix + "ffn_down", config.hidden_size, config.feed_forward_size, layer.down);
    }

    const GgufTensor& require(const std::string& name) {
        const GgufTensor* tensor = file_.tensor(name);
        if (tensor == nullptr) refuse(file_, "tensor " + name + " is missing");
        used_.insert(name);
        return *tensor;
    }

    static std::string shape_text(const GgufTensor& tensor) {
        std::string text = "[";
        for (const uint64_t dim : tensor.shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
        return text + "]";
    }

    static std::string format_name(const GgufTensor& tensor) {
        const GgufFormat* format = find_gguf_format(tensor.format);
        return format != nullptr ? format->name : std::to_string(tensor.format);
    }

    void expect_shape(const GgufTensor& tensor, const std::vector<uint64_t>& expected) const {
        if (tensor.shape == expected) return;
        GgufTensor wanted;
        wanted.shape = expected;
        refuse(file_, "tensor " + quoted(tensor.name) + " has shape " + shape_text(tensor) + ", expected " +
                          shape_text(wanted));
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

    size_t reserve(size_t num_bytes) {
        const size_t offset = num_bytes_;
        num_bytes_ += (num_bytes + 63) / 64 * 64;
        return offset;
    }

    void add_matrix(const std::string& name, int64_t rows, int64_t columns, Matrix& matrix) {
        const GgufTensor& tensor = require(name + ".weight");
        expect_shape(tensor, {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)});
        const int64_t block = block_columns(tensor.format);
        if (block == 0 || columns % block != 0) {
            refuse(file_,
                   "tensor " + quoted(tensor.name) + " has type " + format_name(tensor) + " and " +
                       std::to_string(columns) +
                       " columns; this core runs F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K");
        }
        matrix = {tensor.format, rows, columns, columns / block * panel_block_bytes(tensor.format), nullptr};
        matrices_.emplace_back(&matrix, reserve(matrix.num_bytes()));
        const int64_t panel_file_bytes = kPanelRows * row_bytes(matrix);
        const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes) / panel_file_bytes);
        for (int64_t first = 0; first < matrix.num_panels(); first += step) {
            pieces_.push_back({&tensor, &matrix, first, std::min(step, matrix.num_panels() - first)});
        }
        total_file_bytes_ += tensor.num_bytes;
    }

    void add_vector(const std::string& name, int64_t count, const float** target) {
        const GgufTensor& tensor = require(name);
        expect_shape(tensor, {static_cast<uint64_t>(count)});
        if (tensor.format != kF32 && tensor.format != kF16 && tensor.format != kBF16) {
            refuse(file_, "tensor " + name + " has type " + format_name(tensor) + ", expected F32, F16 or BF16");
        }
        vectors_.push_back({&tensor, target, reserve(static_cast<size_t>(count) * sizeof(float))});
    }

    void add_bias(const std::string& name, bool required, int64_t count, const float** target) {
        if (required || file_.tensor(name) != nullptr) add_vector(name, count, target);
    }

    // A tensor we would not use means a model that computes something else than we do: refuse instead of answering
    // wrongly.
    void refuse_unused_tensors() const {
        for (const GgufTensor& tensor : file_.tensors()) {
            if (used_.count(tensor.name) == 0) {
                refuse(file_, "tensor " + quoted(tensor.name) + " is not part of a " + model_.config_.architecture +
                                  " model as this core knows it");
            }
        }
    }

    static int64_t row_bytes(const Matrix& matrix) {
        return matrix.columns / block_columns(matrix.format) * row_block_bytes(matrix.format);
    }

    void read_vectors() {
        for (const Vector& vector : vectors_) {
            const size_t count = vector.tensor->shape[0];
            float* out = reinterpret_cast<float*>(model_.weights_.data() + vector.offset);
            *vector.target = out;
            if (vector.tensor->format == kF32) {
                file_.read(*vector.tensor, 0, count * sizeof(float), reinterpret_cast<uint8_t*>(out));
                continue;
            }
            std::vector<uint16_t> halves(count);
            file_.read(*vector.tensor, 0, count * sizeof(uint16_t), reinterpret_cast<uint8_t*>(halves.data()));
            for (size_t i = 0; i < count; ++i) {
                out[i] = vector.tensor->format == kF16 ? half_to_float(halves[i])
                                                       : std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
            }
        }
    }

    void read_matrices() {
        ThreadPool pool(options_.cpus);
        pool.run([&](int worker) {
            std::vector<uint8_t> buffer;
            pool.share(worker, static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t) {
                if (failed_.load(std::memory_order_relaxed)) return;
                try {
                    read_piece(pieces_[static_cast<size_t>(begin)], buffer);
                    // Only the loading thread may call back: it is the one that holds the caller's context.
                    if (worker == 0 && options_.progress) options_.progress(file_bytes_read_, total_file_bytes_);
                } catch (...) {
                    const std::lock_guard<std::mutex> guard(failure_mutex_);
                    if (!failed_.exchange(true)) failure_ = std::current_exception();
                }
            });
        });
        if (failure_) std::rethrow_exception(failure_);
        if (options_.progress) options_.progress(total_file_bytes_, total_file_bytes_);
    }

    void read_piece(const Piece& piece, std::vector<uint8_t>& buffer) {
        const Matrix& matrix = *piece.matrix;
        const int64_t bytes_per_row = row_bytes(matrix);
        const int64_t first_row = piece.first_panel * kPanelRows;
        const int64_t num_rows = std::min<int64_t>(piece.num_panels * kPanelRows, matrix.rows - first_row);
        buffer.resize(static_cast<size_t>(num_rows * bytes_per_row));
        file_.read(*piece.tensor, static_cast<uint64_t>(first_row * bytes_per_row), buffer.size(), buffer.data());
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
    Model& model_;
    bool tied_ = false;
    size_t num_bytes_ = 0;
    uint64_t total_file_bytes_ = 0;
    std::set<std::string> used_;
    std::vector<std::pair<Matrix*, size_t>> matrices_;  // and the offset in the weight buffer
    std::vector<Vector> vectors_;
    std::vector<Piece> pieces_;
    std::atomic<uint64_t> file_bytes_read_{0};
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

std::shared_ptr<Model> Model::load(const GgufFile& file, const LoadOptions& options) {
    auto model = std::make_shared<Model>();
    model->config_ = read_model_config(file);
    model->kernels_ = options.kernels;
    WeightLoader(file, options, *model).load();
    return model;
}

uint64_t Model::decode_bytes() const {
    uint64_t total = output_.num_bytes();
    for (const LayerWeights& layer : layers_) {
        for (const Matrix* matrix :
             {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.gate, &layer.up, &layer.down}) {
            total += matrix->num_bytes();
        }
    }
    return total;
}

}  // namespace treadle

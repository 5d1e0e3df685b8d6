#include "tensor_reader.h"

#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>

#include "convert_rows.h"
#include "treadle/thread_pool.h"

namespace treadle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kCopiedAtOnce = int64_t{4} << 20;

// Data is read with pread in pieces of a few MiB into a buffer per worker, so peak memory is the packed weights plus
// those buffers, reading and packing overlap, and a file that shrinks underneath us is an error and not a SIGBUS.
class TensorReader {
 public:
    TensorReader(const GgufFile& file, const TensorPlan& plan, const LoadOptions& options, const std::string& purpose)
        : file_(file),
          plan_(plan),
          cpus_(options.copies.empty() ? options.cpus : options.copies[0].cpus),
          progress_(options.progress),
          copies_(options.copies),
          buffer_(copies_.empty() ? plan.num_bytes() : copies_.size() * copy_bytes(plan), purpose) {}

    PageBuffer read() {
        for (size_t i = 0; i < copies_.size(); ++i) {
            buffer_.prefer_node(i * copy_bytes(plan_), copy_bytes(plan_), copies_[i].node);
        }
        for (const auto& [matrix, offset] : plan_.matrices()) matrix->data = buffer_.data() + offset;
        read_vectors();
        read_matrices();
        for (size_t i = 1; i < copies_.size(); ++i) copy_to(i);
        return std::move(buffer_);
    }

 private:
    // By workers beside that memory: where the system heeds no advice, pages come from the node that touches them
    // first.
    void copy_to(size_t index) {
        ThreadPool pool(copies_[index].cpus);
        uint8_t* target = buffer_.data() + index * copy_bytes(plan_);
        pool.run([&](int worker) {
            pool.share(worker, static_cast<int64_t>(plan_.num_bytes()), kCopiedAtOnce, [&](int64_t begin, int64_t end) {
                std::memcpy(target + begin, buffer_.data() + begin, static_cast<size_t>(end - begin));
            });
        });
    }

    void read_vectors() {
        for (const TensorPlan::Vector& vector : plan_.vectors()) {
            const uint32_t format = vector.tensor->format;
            const auto value_bytes = static_cast<size_t>(row_block_bytes(format));
            std::vector<uint8_t> values(static_cast<size_t>(vector.count) * value_bytes);
            file_.read(*vector.tensor, static_cast<size_t>(vector.first) * value_bytes, values.size(), values.data());
            uint8_t* out = buffer_.data() + vector.offset;
            convert_rows(format, values.data(), kF32, vector.count, out);
            *vector.target = reinterpret_cast<const float*>(out);
        }
    }

    void read_matrices() {
        ThreadPool pool(cpus_);
        const uint64_t total = plan_.total_file_bytes();
        pool.run([&](int worker) {
            std::vector<uint8_t> buffer, converted;
            pool.share(worker, static_cast<int64_t>(plan_.pieces().size()), 1, [&](int64_t begin, int64_t) {
                if (failed_.load(std::memory_order_relaxed)) return;
                try {
                    read_piece(plan_.pieces()[static_cast<size_t>(begin)], buffer, converted);
                    // Only the loading thread may call back: it is the one that holds the caller's context.
                    if (worker == 0 && progress_) progress_(file_bytes_read_, total);
                } catch (...) {
                    const std::lock_guard<std::mutex> guard(failure_mutex_);
                    if (!failed_.exchange(true)) failure_ = std::current_exception();
                }
            });
        });
        if (failure_) std::rethrow_exception(failure_);
        if (progress_) progress_(total, total);
    }

    void read_piece(const TensorPlan::Piece& piece, std::vector<uint8_t>& buffer, std::vector<uint8_t>& converted) {
        const Matrix& matrix = *piece.matrix;
        const uint32_t format = piece.tensor->format;
        const int64_t bytes_in_file = row_bytes(format, matrix.columns);
        const int64_t first_row = piece.first_panel * kPanelRows;
        const int64_t num_rows = std::min<int64_t>(piece.num_panels * kPanelRows, matrix.rows - first_row);
        buffer.resize(static_cast<size_t>(num_rows * bytes_in_file));
        file_.read(*piece.tensor, piece.file_offset + static_cast<uint64_t>(first_row * bytes_in_file), buffer.size(),
                   buffer.data());
        file_bytes_read_ += buffer.size();
        if (matrix.format == format) return pack(piece, num_rows, buffer.data());
        converted.resize(static_cast<size_t>(num_rows * row_bytes(matrix.format, matrix.columns)));
        convert_rows(format, buffer.data(), matrix.format, num_rows * matrix.columns, converted.data());
        pack(piece, num_rows, converted.data());
    }

    static void pack(const TensorPlan::Piece& piece, int64_t num_rows, const uint8_t* rows) {
        const Matrix& matrix = *piece.matrix;
        const int64_t bytes_per_row = row_bytes(matrix.format, matrix.columns);
        for (int64_t p = 0; p < piece.num_panels; ++p) {
            pack_panel(matrix.format, rows + p * kPanelRows * bytes_per_row, bytes_per_row,
                       static_cast<int32_t>(std::min<int64_t>(kPanelRows, num_rows - p * kPanelRows)), matrix.columns,
                       matrix.data + (piece.first_panel + p) * matrix.panel_bytes);
        }
    }

    const GgufFile& file_;
    const TensorPlan& plan_;
    const std::vector<int>& cpus_;
    const std::function<void(uint64_t, uint64_t)>& progress_;
    const std::vector<WeightCopy>& copies_;
    PageBuffer buffer_;
    std::atomic<uint64_t> file_bytes_read_{0};
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::exception_ptr failure_;
};

}  // namespace

PageBuffer read_tensors(const GgufFile& file, const TensorPlan& plan, const LoadOptions& options,
                        const std::string& purpose) {
    return TensorReader(file, plan, options, purpose).read();
}

size_t copy_bytes(const TensorPlan& plan) { return (plan.num_bytes() + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace treadle

#include "config_reader.h"

#include "refuse.h"

namespace treadle {
namespace {

std::string architecture_of(const GgufFile& file) {
    const auto name = file.get_string("general.architecture");
    if (!name) refuse(file, "the key general.architecture is missing");
    return std::string(*name);
}

}  // namespace

ConfigReader::ConfigReader(const GgufFile& file, int64_t context_length)
    : file_(file), context_length_(context_length), architecture_(architecture_of(file)) {}

bool ConfigReader::is_array(const char* name) const {
    const GgufValue* value = file_.find(key(name));
    return value != nullptr && std::holds_alternative<std::shared_ptr<GgufArray>>(*value);
}

int32_t ConfigReader::integer(const char* name, uint64_t low, uint64_t high) const {
    const auto value = file_.get_uint(key(name));
    if (!value) refuse(file_, "the key " + key(name) + " is missing");
    return checked(name, *value, low, high);
}

int32_t ConfigReader::integer_or(const char* name, int32_t fallback, uint64_t low, uint64_t high) const {
    const auto value = file_.get_uint(key(name));
    return value ? checked(name, *value, low, high) : fallback;
}

double ConfigReader::real_or(const char* name, double fallback, double low, double high) const {
    const double value = file_.get_float(key(name)).value_or(fallback);
    if (!(value >= low && value <= high)) {
        refuse(file_, key(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
                          std::to_string(high));
    }
    return value;
}

std::vector<bool> ConfigReader::flags(const char* name, size_t count) const {
    const GgufValue* value = file_.find(key(name));
    const auto* array = value ? std::get_if<std::shared_ptr<GgufArray>>(value) : nullptr;
    if (array == nullptr) return {};
    std::vector<bool> found;
    if (const auto* flags = std::get_if<std::vector<bool>>(&(*array)->items)) found = *flags;
    if (const auto* numbers = std::get_if<std::vector<uint64_t>>(&(*array)->items)) {
        for (const uint64_t number : *numbers) found.push_back(number != 0);
    }
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&(*array)->items)) {
        for (const int64_t number : *numbers) found.push_back(number != 0);
    }
    if (found.size() != count) {
        refuse(file_, key(name) + " has " + std::to_string(found.size()) + " flags, expected " + std::to_string(count) +
                          ", one per layer");
    }
    return found;
}

std::vector<int32_t> ConfigReader::integers(const char* name, size_t count, uint64_t low, uint64_t high) const {
    const GgufValue* value = file_.find(key(name));
    const auto* array = value ? std::get_if<std::shared_ptr<GgufArray>>(value) : nullptr;
    std::vector<int32_t> found;
    const auto collect = [&](const auto* numbers) {
        for (size_t i = 0; numbers != nullptr && i < numbers->size(); ++i) {
            // A negative one is far above every limit.
            found.push_back(checked(name, static_cast<uint64_t>((*numbers)[i]), low, high));
        }
    };
    if (array != nullptr) collect(std::get_if<std::vector<uint64_t>>(&(*array)->items));
    if (array != nullptr) collect(std::get_if<std::vector<int64_t>>(&(*array)->items));
    if (found.size() != count) {
        refuse(file_, key(name) + " has " + std::to_string(found.size()) + " integers, expected " +
                          std::to_string(count) + ", one per layer");
    }
    return found;
}

SoftCap ConfigReader::soft_cap(const char* name, double fallback) const {
    const auto cap = static_cast<float>(real_or(name, fallback, 0.0, 1e6));
    return cap > 0.0f ? SoftCap{cap, 1.0f / cap} : SoftCap{};
}

int32_t ConfigReader::checked(const char* name, uint64_t value, uint64_t low, uint64_t high) const {
    if (value < low || value > high) {
        refuse(file_, key(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
                          std::to_string(high));
    }
    return static_cast<int32_t>(value);
}

}  // namespace treadle

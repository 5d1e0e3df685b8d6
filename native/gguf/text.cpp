#include "treadle/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace treadle {

namespace {

constexpr size_t kMaxQuotedBytes = 96;

// Length of the UTF-8 sequence that starts `text` (never empty), 0 if there is none.
size_t sequence_length(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
    const uint8_t lead = byte(0);
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || text.size() < length) return 0;
    // The second byte carries the rules against overlong forms (E0, F0), surrogates (ED) and values past U+10FFFF (F4).
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(1) < low || byte(1) > high) return 0;
    for (size_t i = 2; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    return length;
}

bool is_control(std::string_view sequence) {
    const auto lead = static_cast<uint8_t>(sequence[0]);
    if (sequence.size() == 1) return lead < 0x20 || lead == 0x7F;
    return lead == 0xC2 && static_cast<uint8_t>(sequence[1]) < 0xA0;  // C1 controls: terminals obey them
}

void append_escaped(std::string& out, std::string_view bytes) {
    constexpr char kHex[] = "0123456789abcdef";
    for (const char c : bytes) {
        const auto byte = static_cast<uint8_t>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
}

}  // namespace

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        if (text.size() >= sizeof(uint64_t)) {
            uint64_t word;
            std::memcpy(&word, text.data(), sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                text.remove_prefix(sizeof word);
                continue;
            }
        }
        const size_t length = sequence_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

std::string printable(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const size_t length = sequence_length(text);
        const std::string_view head = text.substr(0, length == 0 ? 1 : length);
        if (length == 0 || is_control(head)) {
            append_escaped(out, head);
        } else {
            out += head;
        }
        text.remove_prefix(head.size());
    }
    return out;
}

std::string quoted(std::string_view text) {
    size_t cut = std::min(text.size(), kMaxQuotedBytes);
    const auto is_continuation = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; };
    while (cut > 0 && cut < text.size() && is_continuation(text[cut])) --cut;
    std::string out = "'";
    out += printable(text.substr(0, cut));
    out += cut < text.size() ? "...'" : "'";
    return out;
}

}  // namespace treadle

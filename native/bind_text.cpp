// Strings of a file, and what a vocabulary means.
#include <cstring>
#include <string_view>

#include "bind.h"
#include "merges.h"

namespace octavo {

// Stops before the first string that is cut short or is not UTF-8; the caller knows how to say what is wrong with it.
static nb::tuple read_strings(const nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& data, size_t at, size_t count) {
    const auto* bytes = reinterpret_cast<const char*>(data.data());
    const size_t end = data.shape(0);
    nb::list strings;
    for (; count > 0; --count) {
        uint64_t size;
        if (at > end || end - at < sizeof size) break;
        std::memcpy(&size, bytes + at, sizeof size);
        if (size > end - at - sizeof size) break;
        PyObject* text = PyUnicode_DecodeUTF8(bytes + at + sizeof size, static_cast<Py_ssize_t>(size), nullptr);
        if (!text) {
            PyErr_Clear();
            break;
        }
        strings.append(nb::steal(text));
        at += sizeof size + size;
    }
    return nb::make_tuple(strings, at);
}

static nb::list merges_of(const nb::list& tokens) {
    std::vector<std::string_view> texts;
    for (nb::handle token : tokens) {
        Py_ssize_t size;
        const char* text = PyUnicode_AsUTF8AndSize(token.ptr(), &size);  // lives as long as the string
        if (!text) throw nb::python_error();
        texts.emplace_back(text, static_cast<size_t>(size));
    }
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    {
        nb::gil_scoped_release release;
        pairs = sentencepiece_merges(texts);
    }
    nb::list merges;
    for (auto [left, right] : pairs) merges.append(nb::make_tuple(tokens[left], tokens[right]));
    return merges;
}

void bind_text(nb::module_& m) {
    m.def(
        "read_strings", &read_strings, nb::arg("data").noconvert(), nb::arg("at"), nb::arg("count"),
        "Up to `count` strings from byte `at` on, each behind its length in 64 bits, and where they end: fewer where the next is unsound.");
    m.def("sentencepiece_merges", &merges_of, nb::arg("tokens"),
          "The BPE merges that cut a text as SentencePiece does, of its tokens from the best score to the worst.");
}

}  // namespace octavo

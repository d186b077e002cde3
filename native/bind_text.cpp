// Strings of a file, as Python wants them.
#include <cstring>

#include "bind.h"

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

void bind_text(nb::module_& m) {
    m.def(
        "read_strings", &read_strings, nb::arg("data").noconvert(), nb::arg("at"), nb::arg("count"),
        "Up to `count` strings from byte `at` on, each behind its length in 64 bits, and where they end: fewer where the next is unsound.");
}

}  // namespace octavo

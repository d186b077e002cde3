// Grammars: llguidance by its C interface, which its Python package exports, and the masks of a step on the threads of the pool.
//
// Its Python interface holds the interpreter's lock while it prepares a vocabulary, for seconds with a large one; this one never holds it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string_view>

#include "bind.h"

namespace octavo {

namespace {

// As llguidance.h declares them. Whoever opens a library compares its default limits with those that Python sees: if the layout has
// changed, they differ.
struct LlgLimits {
    size_t max_items_in_row;
    uint64_t initial_lexer_fuel, step_lexer_fuel;
    size_t step_max_items, max_lexer_states, max_grammar_size;
    bool precompute_large_lexemes, verbose_errors;
};

struct LlgInit {
    const void* tokenizer;
    uint32_t log_buffer_level, log_stderr_level;
    bool ff_tokens_ok, backtrack_ok;
    LlgLimits limits;
};

struct LlgVocabulary {
    size_t struct_size;
    uint32_t vocab_size, eos;
    const uint32_t* lengths;
    const uint8_t* bytes;
    const char* json;
    bool takes_strings_only;
    size_t (*tokenize)(const void*, const uint8_t*, size_t, uint32_t*, size_t);
    bool tokenizes_greedily;
    const void* context;
    const char* const* slices;
    const uint32_t* more_eos;
    uint32_t num_more_eos;
};

// The functions of the library; it stays loaded.
struct Library {
    void* handle;
    void (*set_defaults)(LlgInit*, const void*);
    void* (*new_vocabulary)(const LlgVocabulary*, char*, size_t);
    void (*free_vocabulary)(void*);
    void* (*new_matcher)(const LlgInit*, const char*, const char*);
    void* (*clone)(const void*);
    void (*free)(void*);
    const char* (*error)(void*);
    bool (*is_stopped)(const void*);
    bool (*is_accepting)(void*);
    int32_t (*consume)(void*, uint32_t);
    int32_t (*rollback)(void*, size_t);
    int32_t (*validate)(void*, const uint32_t*, size_t);
    size_t (*mask_bytes)(const void*);
    int32_t (*mask)(void*, uint32_t*, size_t);

    explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (!handle) throw std::runtime_error(dlerror());
        find(set_defaults, "llg_constraint_init_set_defaults");
        find(new_vocabulary, "llg_new_tokenizer_v2");
        find(free_vocabulary, "llg_free_tokenizer");
        find(new_matcher, "llg_new_matcher");
        find(clone, "llg_clone_matcher");
        find(free, "llg_free_matcher");
        find(error, "llg_matcher_get_error");
        find(is_stopped, "llg_matcher_is_stopped");
        find(is_accepting, "llg_matcher_is_accepting");
        find(consume, "llg_matcher_consume_token");
        find(rollback, "llg_matcher_rollback");
        find(validate, "llg_matcher_validate_tokens");
        find(mask_bytes, "llg_matcher_get_mask_byte_size");
        find(mask, "llg_matcher_compute_mask_into");
    }

    template <class F>
    void find(F& function, const char* name) {
        function = reinterpret_cast<F>(dlsym(handle, name));
        if (!function) throw std::runtime_error(std::string("It lacks the function ") + name + ".");
    }
};

nb::tuple limits_of(const LlgLimits& limits) {
    return nb::make_tuple(limits.max_items_in_row, limits.initial_lexer_fuel, limits.step_lexer_fuel, limits.step_max_items,
                          limits.max_lexer_states, limits.max_grammar_size, limits.precompute_large_lexemes, limits.verbose_errors);
}

// The tokens of a model, as llguidance keeps them, and how the model cuts a text.
class Vocabulary {
  public:
    Vocabulary(const std::string& library, const nb::list& tokens, const std::vector<uint32_t>& eos, nb::callable tokenize,
               const std::vector<std::string>& slices)
        : library(library), tokenize_(std::move(tokenize)) {
        require(!eos.empty(), "A vocabulary needs a token that ends an output.");
        std::vector<uint32_t> lengths;
        std::string bytes;
        for (nb::handle token : tokens) {
            const auto data = nb::cast<nb::bytes>(token);
            lengths.push_back(static_cast<uint32_t>(data.size()));
            bytes.append(data.c_str(), data.size());
        }
        std::vector<const char*> patterns;
        for (const auto& slice : slices) patterns.push_back(slice.c_str());
        patterns.push_back(nullptr);
        char error[512] = "";
        const LlgVocabulary init{sizeof init,
                                 static_cast<uint32_t>(lengths.size()),
                                 eos[0],
                                 lengths.data(),
                                 reinterpret_cast<const uint8_t*>(bytes.data()),
                                 nullptr,
                                 true,
                                 &Vocabulary::tokenize,
                                 false,
                                 this,
                                 patterns.data(),
                                 eos.data() + 1,
                                 static_cast<uint32_t>(eos.size() - 1)};
        {
            nb::gil_scoped_release release;
            handle = this->library.new_vocabulary(&init, error, sizeof error);
        }
        if (!handle) throw std::runtime_error(error);
    }

    Vocabulary(const Vocabulary&) = delete;

    ~Vocabulary() { library.free_vocabulary(handle); }

    LlgInit init() const {
        LlgInit init;
        library.set_defaults(&init, handle);
        init.log_stderr_level = 0;
        return init;
    }

    const Library library;
    void* handle;

  private:
    // How many tokens a text is cut into; as many of them as there is room for are written.
    static size_t tokenize(const void* context, const uint8_t* text, size_t size, uint32_t* tokens, size_t room) {
        nb::gil_scoped_acquire locked;
        try {
            const auto& self = *static_cast<const Vocabulary*>(context);
            const auto cut = nb::cast<std::vector<uint32_t>>(self.tokenize_(nb::str(reinterpret_cast<const char*>(text), size)));
            std::copy_n(cut.begin(), std::min(cut.size(), room), tokens);
            return cut.size();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("the tokenizer of a grammar");
        } catch (...) {  // no exception may pass through the library
        }
        return 0;
    }

    nb::callable tokenize_;
};

// Where one sequence stands in its grammar. For one thread at a time.
class Matcher {
  public:
    Matcher(std::shared_ptr<Vocabulary> vocabulary, void* handle) : vocabulary_(std::move(vocabulary)), handle_(handle) {}
    Matcher(const Matcher&) = delete;
    ~Matcher() { library().free(handle_); }

    std::shared_ptr<Matcher> copy() const { return std::make_shared<Matcher>(vocabulary_, library().clone(handle_)); }

    std::string error() const {
        const char* text = library().error(handle_);
        return text ? text : "";
    }

    bool is_stopped() const { return library().is_stopped(handle_); }
    bool is_accepting() const { return library().is_accepting(handle_); }
    bool consume(uint32_t token) { return library().consume(handle_, token) == 0; }

    int32_t count_allowed(const std::vector<uint32_t>& tokens) const {
        return std::max(0, library().validate(handle_, tokens.data(), tokens.size()));
    }

    size_t mask_words() const { return library().mask_bytes(handle_) / sizeof(uint32_t); }

    // What may come next, and after each of the drafts, up to the first that may not come.
    void write_masks(uint32_t* mask, size_t words, std::span<const uint32_t> drafts) {
        size_t passed = 0;
        while (library().mask(handle_, mask + passed * words, words * sizeof *mask) == 0 && passed < drafts.size() && !is_stopped() &&
               library().validate(handle_, &drafts[passed], 1) == 1 && consume(drafts[passed]))
            ++passed;
        if (passed) (void)library().rollback(handle_, passed);
    }

  private:
    const Library& library() const { return vocabulary_->library; }

    std::shared_ptr<Vocabulary> vocabulary_;
    void* handle_;
};

std::shared_ptr<Matcher> compile(std::shared_ptr<Vocabulary> vocabulary, const std::string& grammar, uint64_t initial_lexer_fuel,
                                 uint64_t step_lexer_fuel, size_t step_max_items, size_t max_lexer_states, size_t max_grammar_size) {
    require(grammar.find('\0') == std::string::npos, "A grammar holds no NUL character.");
    LlgInit init = vocabulary->init();
    init.limits.initial_lexer_fuel = initial_lexer_fuel;
    init.limits.step_lexer_fuel = step_lexer_fuel;
    init.limits.step_max_items = step_max_items;
    init.limits.max_lexer_states = max_lexer_states;
    init.limits.max_grammar_size = max_grammar_size;
    init.limits.verbose_errors = false;
    void* handle;
    {
        nb::gil_scoped_release release;
        handle = vocabulary->library.new_matcher(&init, "guidance", grammar.c_str());
    }
    return std::make_shared<Matcher>(std::move(vocabulary), handle);
}

struct MaskRows {
    std::shared_ptr<Matcher> matcher;
    uint32_t* mask;
    std::vector<uint32_t> drafts;
};

void write_masks(ThreadPool* pool, const nb::list& rows, const Array2<uint32_t>& mask) {
    const size_t words = mask.shape(1);
    std::vector<MaskRows> jobs;
    for (nb::handle entry : rows) {
        auto [matcher, row, drafts] = nb::cast<std::tuple<std::shared_ptr<Matcher>, size_t, std::vector<uint32_t>>>(entry);
        require(row < mask.shape(0) && drafts.size() < mask.shape(0) - row, "The masks do not fit the array.");
        require(matcher->mask_words() == words, "The array has rows of another vocabulary.");
        jobs.push_back({std::move(matcher), mask.data() + row * words, std::move(drafts)});
    }
    nb::gil_scoped_release release;
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i; (i = next++) < jobs.size();) jobs[i].matcher->write_masks(jobs[i].mask, words, jobs[i].drafts);
    };
    if (pool)
        pool->run([&](int, int) { work(); });
    else
        work();
}

}  // namespace

void bind_grammar(nb::module_& m) {
    nb::class_<Vocabulary>(m, "GrammarVocabulary")
        .def(nb::init<const std::string&, const nb::list&, const std::vector<uint32_t>&, nb::callable, const std::vector<std::string>&>(),
             nb::arg("library"), nb::arg("tokens"), nb::arg("eos_token_ids"), nb::arg("tokenize"), nb::arg("slices"))
        .def_prop_ro("default_limits", [](const Vocabulary& self) { return limits_of(self.init().limits); });
    nb::class_<Matcher>(m, "GrammarMatcher")
        .def("copy", &Matcher::copy)
        .def_prop_ro("error", &Matcher::error, "Why it is of no further use; empty where it is.")
        .def_prop_ro("is_stopped", &Matcher::is_stopped)
        .def_prop_ro("is_accepting", &Matcher::is_accepting)
        .def("consume", &Matcher::consume, nb::arg("token_id"))
        .def("count_allowed", &Matcher::count_allowed, nb::arg("token_ids"));
    m.def("compile_grammar", &compile, nb::arg("vocabulary"), nb::arg("grammar"), nb::kw_only(), nb::arg("initial_lexer_fuel"),
          nb::arg("step_lexer_fuel"), nb::arg("step_max_items"), nb::arg("max_lexer_states"), nb::arg("max_grammar_size"));
    m.def(
        "write_masks", &write_masks, nb::arg("pool").none(), nb::arg("rows"), nb::arg("mask").noconvert(),
        "Fills, for (matcher, row, drafts), the mask's row and one after each draft; on the caller's thread alone where there is no pool.");
}

}  // namespace octavo

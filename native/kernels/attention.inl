// Paged attention.
namespace octavo::ISA {

static void store(const StoreArgs&, int, int) {}
static int64_t attention_scratch(int, int, int, int, int64_t, int) { return 0; }
static void attention(const AttentionArgs&, int, int) {}
static void attention_merge(const AttentionArgs&, int, int) {}

}  // namespace octavo::ISA

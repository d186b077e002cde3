// From logits to a token.
namespace octavo::ISA {

static void sample(const SampleArgs&, int, int) {}

}  // namespace octavo::ISA

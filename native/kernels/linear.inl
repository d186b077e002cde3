// Linear layers.
namespace octavo::ISA {

static Act act_of(Format) { return Act::f32; }
static int64_t act_bytes(Act, int k) { return 4 * int64_t{k}; }
static int panel_of(Format) { return 4 * W; }
static void quantize(const QuantizeArgs&, int, int) {}
static void linear(const LinearArgs*, int, int, int) {}
static void embed(const EmbedArgs&, int, int) {}

}  // namespace octavo::ISA

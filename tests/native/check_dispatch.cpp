// Prints the name of the kernel table that this machine is given.
#include <cstdio>

#include "dispatch.h"

int main() { std::puts(octavo::select_isa("")->name); }

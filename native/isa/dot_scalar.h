// Dot products of the linear kernels for this ISA.
#pragma once

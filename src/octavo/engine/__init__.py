"""The engine: requests, blocks, the scheduler and the step, in pure Python without a tensor."""

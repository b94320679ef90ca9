//! Counts allocations exactly, for the tests that limit the cost of each kind's plan.

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Runs `work`, and returns the number of allocations in the whole process meanwhile.
pub fn allocations<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = dhat::HeapStats::get().total_blocks;
    let done = work();
    (dhat::HeapStats::get().total_blocks - before, done)
}

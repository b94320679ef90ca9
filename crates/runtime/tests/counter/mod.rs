//! Counts allocations, exactly: for the tests of what a plan costs, of every kind.

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Allocations while something is done, of the whole process.
pub fn allocations<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = dhat::HeapStats::get().total_blocks;
    let done = work();
    (dhat::HeapStats::get().total_blocks - before, done)
}

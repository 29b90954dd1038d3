//! Copies beside the work of a GPU, and the marks that order the two, on the stand-in.

use std::time::Duration;

use sluice_cuda::{CopyStream, Gpu, HostMemory};
use testkit::here;

/// Runs a test where there is a stand-in for the GPU.
fn on_gpu(body: impl FnOnce(&Gpu)) {
    here::open_stand_in();
    body(&Gpu::open(0).unwrap());
}

fn filled(gpu: &Gpu, byte: u8, bytes: usize) -> HostMemory {
    let mut memory = HostMemory::pinned(gpu, bytes).unwrap();
    memory.to_write().unwrap().fill(byte);
    memory
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn work_begins_after_the_copies_that_it_was_told_to_wait_for() {
    on_gpu(|gpu| {
        let copies = CopyStream::new(gpu).unwrap();
        let from = filled(gpu, 7, 300);
        let (slot, out) = (gpu.allocate(100).unwrap(), gpu.allocate(100).unwrap());
        copies.copy(&from, [(slot.span(), 200..300)]).unwrap();
        gpu.begin_after(&copies.mark().unwrap()).unwrap();
        gpu.copy(out.span(), slot.span()).unwrap();
        let mut read = vec![0; 100];
        gpu.download(out.span(), &mut read).unwrap();
        assert_eq!(read, [7; 100]);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn copies_begin_after_the_work_that_they_were_told_to_wait_for() {
    on_gpu(|gpu| {
        let copies = CopyStream::new(gpu).unwrap();
        let from = filled(gpu, 7, 100);
        let (slot, out) = (gpu.allocate(100).unwrap(), gpu.allocate(100).unwrap());
        gpu.fill(slot.span(), 3).unwrap();
        gpu.copy(out.span(), slot.span()).unwrap();
        copies.begin_after(&gpu.mark().unwrap()).unwrap();
        copies.copy(&from, [(slot.span(), 0..100)]).unwrap();
        copies.wait().unwrap();
        let mut read = vec![0; 100];
        gpu.download(out.span(), &mut read).unwrap();
        assert_eq!(read, [3; 100], "it was read before it was written");
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn memory_is_not_written_before_copies_from_it_have_ended() {
    on_gpu(|gpu| {
        for make in [HostMemory::pinned, HostMemory::pageable] {
            let copies = CopyStream::new(gpu).unwrap();
            let mut from = make(gpu, 100).unwrap();
            from.to_write().unwrap().fill(1);
            let slots = [gpu.allocate(100).unwrap(), gpu.allocate(100).unwrap()];
            copies.copy(&from, [(slots[0].span(), 0..100)]).unwrap();
            from.to_write().unwrap().fill(2);
            copies.copy(&from, [(slots[1].span(), 0..100)]).unwrap();
            // It waits here, too.
            drop(from);
            for (slot, byte) in slots.iter().zip([1, 2]) {
                let mut read = vec![0; 100];
                gpu.download(slot.span(), &mut read).unwrap();
                assert_eq!(read, [byte; 100]);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn marks_tell_the_time_between_them_once_they_have_passed() {
    on_gpu(|gpu| {
        let copies = CopyStream::new(gpu).unwrap();
        let from = filled(gpu, 7, 1 << 20);
        let slot = gpu.allocate(1 << 20).unwrap();
        let start = copies.mark().unwrap();
        copies.copy(&from, [(slot.span(), 0..1 << 20)]).unwrap();
        let end = copies.mark().unwrap();
        assert_eq!(end.since(&start).unwrap(), None, "nobody has waited");
        end.wait().unwrap();
        assert!(end.since(&start).unwrap().unwrap() < Duration::from_secs(1));
    });
}

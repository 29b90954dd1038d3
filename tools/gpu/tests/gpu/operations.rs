//! The operations of a GPU compared with the CPU's.

use sluice_engine::check::CheckResult;
use sluice_formats::DType;
use sluice_gpu::{OperationSpeed, SpeedSizes, operations, speeds};
use sluice_ops::device::{Device, DeviceChoice};
use testkit::here;

fn gpu(number: DType) -> Device {
    let opened = Device::open(DeviceChoice::Cuda(0), Some(number), 2).unwrap();
    assert!(opened.device.is_gpu() && opened.gpu_unavailable.is_none());
    opened.device
}

fn all_pass(checks: &[CheckResult]) {
    let failed: Vec<_> = checks.iter().filter(|check| !check.passes()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn check_operations(number: DType) {
    here::open_stand_in();
    let checks = operations(&gpu(number), 7, &mut |_| {}).unwrap();
    assert!(checks.len() > 80, "only {} checks", checks.len());
    all_pass(&checks);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn every_operation_in_f32() {
    check_operations(DType::F32);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn every_operation_in_f16() {
    check_operations(DType::F16);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn every_operation_in_bf16() {
    check_operations(DType::Bf16);
}

#[test]
fn the_cpu_passes_its_own_check() {
    let checks = operations(&Device::cpu(2).unwrap(), 7, &mut |_| {}).unwrap();
    all_pass(&checks);
}

fn timed(device: &Device) -> Vec<OperationSpeed> {
    let sizes = SpeedSizes {
        hidden_size: 256,
        rows: vec![1, 33],
        canvases: vec![64],
    };
    let mut told = Vec::new();
    speeds(device, &sizes, &mut |speed| told.push(speed.clone())).unwrap();
    let is_a_time = |speed: &OperationSpeed| speed.seconds > 0.0 && speed.bytes > 0.0;
    assert!(told.iter().all(is_a_time), "{told:#?}");
    told
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_a_gpu_does_more_is_timed_beside_what_the_cpu_does_too() {
    here::open_stand_in();
    let on_cpu = timed(&Device::cpu(2).unwrap());
    let on_gpu = timed(&gpu(DType::Bf16));
    let is_on_cpu = |speed: &&OperationSpeed| on_cpu.iter().any(|other| other.name == speed.name);
    assert_eq!(on_gpu.iter().filter(is_on_cpu).count(), on_cpu.len());
    let more: Vec<_> = on_gpu.iter().filter(|speed| !is_on_cpu(speed)).collect();
    let names: Vec<_> = more.iter().map(|speed| speed.name.as_str()).collect();
    for name in [
        "linear, 1 x 256 x 256, bf16, by cuBLAS",
        "linear, 1 x 256 x 256, bf16, by kernels",
        "linear, 33 x 256 x 256, bf16, by cuBLAS",
        "linear, 33 x 256 x 256, bf16, by kernels",
        "decode, 768 x 256, q4_k",
        "decode, 768 x 256, huffman",
        "decode, 768 x 256, palette",
        "linear, 1 x 256 x 256, palette",
        "linear, 33 x 256 x 256, palette",
        "decode, 768 x 256, rate",
        "decode, 768 x 256, columns",
    ] {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }
    for speed in more {
        let decoded = speed.name.starts_with("decode").then_some(768.0 * 512.0);
        assert_eq!(speed.decompressed_bytes, decoded, "{}", speed.name);
    }
}

//! What is found of the device that computes.

use sluice_ops::{
    OpsError,
    device::{Device, GpuUnavailable},
};
use sluice_proto::v1::Finding;
use sluice_report::findings::{ok, problem, warning};
use sluice_shared::units;

const SUBJECT: &str = "device";

/// Of the device in use, and why it is not a GPU if one was tried.
pub(crate) fn finding(device: &Device, no_gpu: Option<&GpuUnavailable>) -> Finding {
    if device.has_failed() {
        let found = "the GPU failed, and this process cannot use it any more";
        return problem(
            SUBJECT,
            found,
            "restart the daemon; look at `dmesg` for the driver's words",
        );
    }
    let Some(gpu) = device.gpu() else {
        return without_gpu(no_gpu);
    };
    let (facts, live) = (gpu.properties(), gpu.live_stats());
    let driver = facts
        .driver_version
        .as_deref()
        .unwrap_or("of unknown version");
    let (major, minor) = facts.cuda_version;
    let mut found = format!("{}, driver {driver}, CUDA {major}.{minor}", facts.name);
    if let Some(free) = live.free_bytes.or(device.memory().free_bytes) {
        let total = units::bytes(facts.total_bytes);
        found += &format!("; {} of {total} free", units::bytes(free));
    }
    match gpu.blas() {
        Some(blas) => found += &format!("; with {}", blas.name()),
        None => found += "; without cuBLAS, so Sluice's own kernels do all matmuls",
    }
    ok(SUBJECT, found)
}

fn without_gpu(no_gpu: Option<&GpuUnavailable>) -> Finding {
    let Some(unavailable) = no_gpu else {
        return ok(SUBJECT, "the CPU computes, as configured");
    };
    let found = format!("the CPU computes: {unavailable}");
    match unavailable.is_fault() {
        true => warning(SUBJECT, found, unavailable.hint()),
        // Most machines without the driver have no GPU.
        false => Finding {
            advice: Some(format!("to use an NVIDIA GPU: {}", unavailable.hint())),
            ..ok(SUBJECT, found)
        },
    }
}

/// Of a device that was named and can't be used.
pub(super) fn not_opened(error: &OpsError) -> Finding {
    let hint = match error {
        OpsError::NoGpu(unavailable) => unavailable.hint(),
        _ => "name another with `device` in the configuration",
    };
    problem(SUBJECT, format!("the daemon does not start: {error}"), hint)
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::FindingState;

    use super::*;

    #[test]
    fn only_a_gpu_that_is_there_and_fails_is_worth_a_warning() {
        let none = GpuUnavailable::NoDriver {
            reason: "libcuda.so.1".into(),
        };
        let found = without_gpu(Some(&none));
        assert_eq!(found.state(), FindingState::Ok);
        assert!(found.advice().contains("install NVIDIA's driver"));
        let old = GpuUnavailable::DriverTooOld {
            found: (11, 0),
            needed: (12, 0),
        };
        let found = without_gpu(Some(&old));
        assert_eq!(found.state(), FindingState::Warning);
        assert!(found.advice().contains("update"), "{found:?}");
        assert_eq!(without_gpu(None).advice, None);
        let missing = not_opened(&OpsError::NoGpu(GpuUnavailable::NoDevice));
        assert_eq!(missing.state(), FindingState::Problem);
    }
}

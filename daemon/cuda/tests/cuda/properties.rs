//! Properties of a GPU with NVML, without it, and when it reports nothing.

use sluice_cuda::{Gpu, LiveStats, PROBE_BYTES, PcieLink, devices};
use testkit::apart;

const GIB: u64 = 1 << 30;

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn gpus_are_named_without_being_opened() {
    let settings = [("STAND_IN_DEVICES", "2")];
    apart::run("gpus_are_named_without_being_opened", &settings, || {
        let devices = devices().unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[1].ordinal, 1);
        assert_eq!(devices[1].capability, (8, 6));
        assert_eq!(devices[1].total_bytes, 4 * GIB);
        let gpu = Gpu::open(0).unwrap();
        assert_eq!(gpu.name(), devices[0].name);
        assert_eq!(gpu.capability(), devices[0].capability);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_driver_and_nvml_tell_is_known() {
    let settings = [("STAND_IN_HELD", "0x40000000")];
    apart::run("what_driver_and_nvml_tell_is_known", &settings, || {
        let gpu = Gpu::open(0).unwrap();
        let facts = gpu.properties();
        assert_eq!(facts.pci_bus_id, "0000:01:00.0");
        assert_eq!(
            facts.uuid.len(),
            "GPU-00000000-0000-0000-0000-000000000000".len()
        );
        assert_eq!(facts.cuda_version, (12, 8));
        assert!(facts.driver_version.is_some());
        assert_eq!(facts.total_bytes, 4 * GIB);
        assert_eq!(
            (facts.l2_bytes, facts.memory_bus_bits),
            (Some(2 << 20), Some(128))
        );
        assert!(facts.has_bf16 && !facts.integrated);

        let context_bytes = gpu.context_bytes().expect("NVML tells it");
        assert!(context_bytes > 0);
        let live = gpu.live_stats();
        let workspace_bytes = gpu.blas().expect("the stand-in has one").workspace_bytes() as u64;
        assert_eq!(
            live.free_bytes,
            Some(3 * GIB - context_bytes - workspace_bytes)
        );
        assert_eq!(live.held_by_others_bytes, Some(GIB));
        assert!(
            matches!(live.pcie_link, Some(PcieLink { generation, generation_max, .. }) if generation <= generation_max)
        );
        assert!(live.clocks_mhz.is_some() && live.temperature_c.is_some());
        assert!(live.power_w.unwrap() < live.power_limit_w.unwrap());
        assert!(live.utilization_percent.is_some());

        let memory = gpu.allocate(1 << 20).unwrap();
        let less = gpu.live_stats();
        assert_eq!(
            less.free_bytes,
            live.free_bytes.map(|free| free - (1 << 20))
        );
        assert_eq!(less.held_by_others_bytes, live.held_by_others_bytes);
        drop(memory);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_nobody_tells_is_unknown() {
    apart::run_without(
        &["libnvidia-ml.so.1"],
        "what_nobody_tells_is_unknown",
        &[],
        || {
            let gpu = Gpu::open(0).unwrap();
            assert_eq!(gpu.properties().driver_version, None);
            assert_eq!(gpu.context_bytes(), None);
            let free_bytes = Some(gpu.memory().unwrap().free_bytes);
            assert_eq!(gpu.live_stats(), only_free(free_bytes));
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn figures_that_a_gpu_does_not_have_are_unknown() {
    let settings = [("STAND_IN_NVML", "absent-figures")];
    apart::run(
        "figures_that_a_gpu_does_not_have_are_unknown",
        &settings,
        || {
            let gpu = Gpu::open(0).unwrap();
            let live = gpu.live_stats();
            assert_eq!(
                LiveStats {
                    held_by_others_bytes: None,
                    ..live.clone()
                },
                only_free(live.free_bytes)
            );
        },
    );
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_gpu_is_the_same_to_driver_and_nvml() {
    // The driver counts from the second GPU on, and NVML from the first.
    let settings = [("STAND_IN_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES", "1")];
    apart::run("a_gpu_is_the_same_to_driver_and_nvml", &settings, || {
        let gpu = Gpu::open(0).unwrap();
        assert_eq!(gpu.properties().pci_bus_id, "0000:02:00.0");
        // This process holds memory on that GPU only, and NVML must see it there.
        assert!(gpu.context_bytes().unwrap() > 0);
        assert_eq!(gpu.live_stats().held_by_others_bytes, Some(0));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rates_are_measured_and_leave_nothing_behind() {
    apart::run("rates_are_measured_and_leave_nothing_behind", &[], || {
        let gpu = Gpu::open(0).unwrap();
        let before = gpu.memory().unwrap();
        let rates = gpu.measure_bandwidth().unwrap();
        for rate in [
            rates.pinned_to_device,
            rates.pageable_to_device,
            rates.device_copy,
        ] {
            assert!(rate.is_finite() && rate > 0.0, "{rates:?}");
        }
        assert_eq!(gpu.memory().unwrap(), before);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rates_are_measured_where_the_system_pins_too_little() {
    let name = "rates_are_measured_where_the_system_pins_too_little";
    // The first is what every GPU has to be opened.
    apart::run(name, &[("STAND_IN_FAIL_PINNED", "2")], || {
        let rates = Gpu::open(0).unwrap().measure_bandwidth().unwrap();
        assert!(rates.pinned_to_device.is_finite() && rates.pinned_to_device > 0.0);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rates_that_have_no_room_are_refused() {
    let settings = [("STAND_IN_MEMORY", "0x0c000000")];
    apart::run("rates_that_have_no_room_are_refused", &settings, || {
        let gpu = Gpu::open(0).unwrap();
        assert!(gpu.memory().unwrap().free_bytes < PROBE_BYTES as u64);
        assert!(gpu.measure_bandwidth().is_err());
    });
}

fn only_free(free_bytes: Option<u64>) -> LiveStats {
    LiveStats {
        free_bytes,
        held_by_others_bytes: None,
        pcie_link: None,
        clocks_mhz: None,
        temperature_c: None,
        power_w: None,
        power_limit_w: None,
        utilization_percent: None,
    }
}

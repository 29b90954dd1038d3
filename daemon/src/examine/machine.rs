//! What is found of processor, system, memory and limits.

use std::fs;

use nix::unistd::{Uid, User};
use rustix::process::{Resource, geteuid, getrlimit};
use sluice_machine::{
    InstructionSet, Instructions, MemoryStats, SwapStats, default_budget,
    default_pinned_memory_limit,
};
use sluice_proto::v1::Finding;
use sluice_report::findings::{ok, problem, warning};
use sluice_shared::units;

use crate::{config::Config, limits::DESCRIPTORS, telemetry::HostFacts};

/// Memory below which nothing is left for a model.
const FREE_BYTES_MIN: u64 = 256 << 20;

pub(super) fn findings(config: &Config) -> Vec<Finding> {
    let memory = MemoryStats::read();
    vec![
        user(config),
        processor(config.instructions.value.instructions()),
        of_memory(&memory, config.budget.value.bytes()),
        of_swap(SwapStats::read()),
        pinned(config, &memory),
        descriptors(getrlimit(Resource::Nofile).maximum),
    ]
}

/// Whom the daemon runs as, and who may do what.
fn user(config: &Config) -> Finding {
    let uid = geteuid().as_raw();
    let name = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let name = name.map_or_else(|| uid.to_string(), |user| user.name);
    let roles = &config.roles.value;
    ok("user", format!("runs as {name}; roles: {roles}"))
}

/// The processor, and the instructions that compute.
fn processor(instructions: Instructions) -> Finding {
    const SUBJECT: &str = "processor";
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let works: Vec<_> = Instructions::all().iter().map(|all| all.name()).collect();
    let found = format!(
        "{}, {threads} threads, computes with {} (works: {}); Linux {} on {}",
        HostFacts::new().processor,
        instructions.name(),
        works.join(", "),
        kernel.trim(),
        std::env::consts::ARCH
    );
    // Elsewhere nothing optional is used.
    let is_slow = cfg!(target_arch = "x86_64") && Instructions::of(InstructionSet::Avx2).is_none();
    if is_slow {
        let advice = "the CPU computes several times slower without AVX2; in a virtual machine pass the host's processor through";
        return warning(SUBJECT, found, advice);
    }
    match Instructions::amx_barred() {
        Some(why) => warning(
            SUBJECT,
            format!("{found}; AMX is left out: {why}"),
            "AMX takes Linux 5.16 or newer, and in a virtual machine or a sandbox one that passes it through; all else works without",
        ),
        None => ok(SUBJECT, found),
    }
}

/// The host's memory, as far as this process may have it.
fn of_memory(memory: &MemoryStats, budget: Option<u64>) -> Finding {
    const SUBJECT: &str = "memory";
    let (Some(total), Some(free)) = (memory.total_bytes, memory.free_bytes) else {
        let found = "the system does not tell how much there is";
        return warning(SUBJECT, found, "mount /proc, and set `budget`");
    };
    let found = format!(
        "{} of {} free for this process; budget {}",
        units::bytes(free),
        units::bytes(total),
        match budget {
            Some(bytes) => units::bytes(bytes),
            None => format!(
                "default ({} on the CPU now)",
                units::bytes(default_budget(free))
            ),
        }
    );
    if free < FREE_BYTES_MIN {
        let advice =
            "end other programs, unload the model, or raise the limit of the container or service";
        return warning(SUBJECT, found, advice);
    }
    ok(SUBJECT, found)
}

fn of_swap(swap: Option<SwapStats>) -> Finding {
    const SUBJECT: &str = "swap";
    let Some(swap) = swap.filter(|swap| swap.total_bytes > 0) else {
        return ok(SUBJECT, "none");
    };
    let used = swap.total_bytes.saturating_sub(swap.free_bytes);
    let found = format!(
        "{} of {} used",
        units::bytes(used),
        units::bytes(swap.total_bytes)
    );
    match used > swap.total_bytes / 2 {
        true => warning(
            SUBJECT,
            found,
            "weights that are swapped out slow every pass: lower the budget, or end other programs",
        ),
        false => ok(SUBJECT, found),
    }
}

/// Pinned memory, which only streaming to a GPU takes.
fn pinned(config: &Config, memory: &MemoryStats) -> Finding {
    let most = match config.pinned_memory_limit.value.bytes() {
        Some(bytes) => units::bytes(bytes),
        None => format!(
            "{} (auto)",
            units::bytes(default_pinned_memory_limit(memory))
        ),
    };
    let limit = match getrlimit(Resource::Memlock).current {
        Some(bytes) => units::bytes(bytes),
        None => "unlimited".to_owned(),
    };
    ok(
        "pinned memory",
        format!(
            "at most {most}, with a GPU; the limit of locked memory is {limit}, which NVIDIA's driver passes by"
        ),
    )
}

/// Files that may be open at once, by the limit that the daemon raises its own to.
fn descriptors(maximum: Option<u64>) -> Finding {
    const SUBJECT: &str = "open files";
    match maximum {
        Some(most) if most < DESCRIPTORS / 4 => problem(
            SUBJECT,
            format!("at most {most}; many clients take up to {DESCRIPTORS}"),
            "raise the hard limit: `ulimit -Hn`, or LimitNOFILE= in the unit",
        ),
        Some(most) if most < DESCRIPTORS => warning(
            SUBJECT,
            format!("at most {most}; many clients take up to {DESCRIPTORS}"),
            "raise the hard limit: `ulimit -Hn`, or LimitNOFILE= in the unit",
        ),
        _ => ok(SUBJECT, format!("up to {DESCRIPTORS}, which suffices")),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::FindingState::{Ok as Fine, Problem, Warning};

    use super::*;

    #[test]
    fn too_little_memory_is_a_warning() {
        let memory = |free| MemoryStats {
            total_bytes: Some(8 << 30),
            free_bytes: free,
            page_cache_bytes: None,
        };
        let found = of_memory(&memory(Some(4 << 30)), None);
        assert_eq!(found.state(), Fine);
        assert!(
            found.found.starts_with("4.00 GiB of 8.00 GiB free"),
            "{found:?}"
        );
        assert_eq!(of_memory(&memory(Some(1 << 20)), None).state(), Warning);
        assert_eq!(of_memory(&memory(None), None).state(), Warning);
        let found = of_memory(&memory(Some(4 << 30)), Some(2 << 30));
        assert!(found.found.ends_with("budget 2.00 GiB"), "{found:?}");
    }

    #[test]
    fn swap_is_worth_a_word_where_most_of_it_is_used() {
        let swap = |free_bytes| SwapStats {
            total_bytes: 4 << 30,
            free_bytes,
        };
        assert_eq!(of_swap(None).state(), Fine);
        assert_eq!(of_swap(Some(swap(3 << 30))).state(), Fine);
        let found = of_swap(Some(swap(1 << 30)));
        assert_eq!(
            (found.state(), &*found.found),
            (Warning, "3.00 GiB of 4.00 GiB used")
        );
    }

    #[test]
    fn a_limit_of_open_files_is_judged_by_what_connections_take() {
        assert_eq!(descriptors(None).state(), Fine);
        assert_eq!(descriptors(Some(DESCRIPTORS)).state(), Fine);
        assert_eq!(descriptors(Some(DESCRIPTORS - 1)).state(), Warning);
        assert_eq!(descriptors(Some(64)).state(), Problem);
    }
}

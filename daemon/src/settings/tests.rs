//! Who wins, level by level, and what outlives the daemon.

use std::path::Path;

use clap::Parser;
use sluice_plan::LearnedExperts;
use sluice_shared::level::Level;
use tempfile::TempDir;

use super::*;
use crate::{
    cli::Arguments,
    config::{Config, Environment},
    state::{SavedModel, State},
};

/// A daemon's surroundings in a folder of their own.
struct World(TempDir);

impl World {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn config(&self, flags: &[&str]) -> Result<Config, String> {
        let arguments = Arguments::parse_from(["sluiced"].iter().chain(flags));
        let environment = Environment {
            variables: Default::default(),
            current_folder: self.0.path().to_owned(),
            temporary: self.0.path().join("tmp"),
            system_file: self.0.path().join("sluiced.toml"),
            user_id: 1000,
            cores: 2,
        };
        arguments.resolve(&environment).map_err(|error| {
            let folder = format!("{}/", self.0.path().display());
            error.to_string().replace(&folder, "")
        })
    }

    /// What a daemon that is started so holds to.
    fn settings(&self, flags: &[&str]) -> ModelSettings {
        let config = self.config(flags).unwrap();
        let started = StartSettings {
            level: config.level,
            budget: config.budget,
            small_memory: config.small_memory.value,
            ..StartSettings::default()
        };
        let state = StateStore::open(Some(self.0.path())).unwrap();
        ModelSettings::new(started, config.model_settings, Arc::new(state))
    }
}

fn model() -> ModelName {
    ModelName::at(Path::new("/m/some.gguf"))
}

/// Keeps what is asked for.
fn asked(settings: &ModelSettings, model: &ModelName, change: &PlanOptions) {
    let saved = settings.state.save(|state| remember(state, model, change));
    saved.unwrap();
}

fn level(level: Level) -> PlanOptions {
    PlanOptions {
        level: Some(level),
        ..PlanOptions::default()
    }
}

#[test]
fn who_wins_is_the_order_of_the_list() {
    // Each step says one thing more, from the one that gives way to all to the one that gives way to none.
    let world = World::new();
    let holds = |flags: &[&str], asked: &PlanOptions| {
        let level = world.settings(flags).for_load(&model(), asked).level;
        (level.origin, level.value)
    };
    let nothing = PlanOptions::default();
    assert_eq!(
        holds(&[], &nothing),
        (SettingOrigin::BuiltIn, Level::Standard)
    );
    assert_eq!(
        holds(&["--small-memory"], &nothing),
        (SettingOrigin::SmallMemory, Level::Aggressive)
    );
    world.file("sluiced.toml", "level = \"off\"\nsmall_memory = true\n");
    assert_eq!(
        holds(&[], &nothing),
        (SettingOrigin::Configuration, Level::Off)
    );
    let settings = world.settings(&[]);
    asked(&settings, &model(), &level(Level::Moderate));
    assert_eq!(
        holds(&[], &nothing),
        (SettingOrigin::Remembered, Level::Moderate)
    );
    world.file("models.toml", "[some]\nlevel = \"aggressive\"\n");
    let of_file = (SettingOrigin::ModelFile, Level::Aggressive);
    assert_eq!(holds(&[], &nothing), of_file);
    let flags = ["--level", "mild"];
    let of_flag = (SettingOrigin::CommandLine, Level::Mild);
    assert_eq!(holds(&flags, &nothing), of_flag);
    let request = level(Level::Auto);
    assert_eq!(
        holds(&flags, &request),
        (SettingOrigin::Request, Level::Auto)
    );

    // Another model has what was said of all.
    let other = ModelName::at(Path::new("/m/other.gguf"));
    let of_other = world.settings(&[]).for_load(&other, &nothing);
    assert_eq!(of_other.level.origin, SettingOrigin::Configuration);
    // And each setting is looked for by itself.
    let load = world.settings(&[]).for_load(&model(), &nothing);
    assert_eq!(load.budget.origin, SettingOrigin::BuiltIn);
}

#[test]
fn the_defaults_for_small_memory_are_told_where_they_are_taken() {
    let world = World::new();
    let told = |flags: &[&str]| -> Vec<String> {
        let told = world.settings(flags).small_memory_defaults();
        let line = |setting: &v1::ResolvedSetting| {
            format!("{} {} ({})", setting.name, setting.value, setting.origin)
        };
        told.iter().map(line).collect()
    };
    assert!(told(&[]).is_empty() && world.settings(&[]).default_limits().is_none());
    let limits = [
        "length 64 (small_memory)",
        "block_length 32 (small_memory)",
        "steps 64 (small_memory)",
    ];
    let all = [&["level aggressive (small_memory)"][..], &limits].concat();
    assert_eq!(told(&["--small-memory"]), all);
    assert_eq!(told(&["--small-memory", "--level", "mild"]), limits);
    world.file("sluiced.toml", "small_memory = true\n");
    assert_eq!(told(&[]), all);
    assert!(told(&["--small-memory=false"]).is_empty());
}

#[test]
fn the_order_in_which_words_are_given_means_nothing() {
    let origins = [
        SettingOrigin::Request,
        SettingOrigin::CommandLine,
        SettingOrigin::ModelFile,
        SettingOrigin::Remembered,
        SettingOrigin::Configuration,
        SettingOrigin::Checkpoint,
        SettingOrigin::SmallMemory,
        SettingOrigin::BuiltIn,
    ];
    for (place, first) in origins.iter().enumerate() {
        let said = origins[place..].iter().rev();
        let resolved = resolve(said.map(|origin| (*origin, Some(origin.name()))));
        assert_eq!(resolved.unwrap().value, first.name());
    }
    let nobody: [(SettingOrigin, Option<u8>); 1] = [(SettingOrigin::Request, None)];
    assert_eq!(resolve(nobody), None);
}

#[test]
fn what_was_asked_for_outlives_the_daemon_by_model() {
    let world = World::new();
    let budget = Budget::Bytes(2 << 30);
    let settings = world.settings(&[]);
    asked(&settings, &model(), &level(Level::Moderate));
    let to = PlanOptions {
        budget: Some(budget),
        ..PlanOptions::default()
    };
    asked(&settings, &model(), &to);
    asked(&settings, &ModelName::embedded(), &level(Level::Off));
    drop(settings);

    let again = world.settings(&[]);
    let load = again.for_load(&model(), &PlanOptions::default());
    assert_eq!(load.level.value, Level::Moderate);
    assert_eq!(load.budget.value, budget);
    let embedded = again.for_load(&ModelName::embedded(), &PlanOptions::default());
    assert_eq!(embedded.level.value, Level::Off);
    assert_eq!(embedded.budget.origin, SettingOrigin::BuiltIn);
    again.state.save(|state| forget(state, &model())).unwrap();
    drop(again);
    let load = world
        .settings(&[])
        .for_load(&model(), &PlanOptions::default());
    assert_eq!(load.level.origin, SettingOrigin::BuiltIn);
}

#[test]
fn what_is_asked_for_and_what_passes_told_do_not_displace_each_other() {
    let mut state = State::default();
    let told = LearnedExperts {
        shape: 7,
        spread: 0.5,
        turnover: 0.25,
    };
    remember(&mut state, &model(), &level(Level::Off));
    remember_experts(&mut state, &model(), told.into());
    assert_eq!(remembered::of(&state, &model()).level, Some(Level::Off));
    remember(&mut state, &model(), &level(Level::Moderate));
    forget(&mut state, &model());
    assert_eq!(remembered::of(&state, &model()).level, None);
    assert_eq!(saved_experts(&state, &model()), Some(told.into()));
    assert_eq!(saved_experts(&state, &ModelName::embedded()), None);
}

#[test]
fn words_of_a_later_version_count_as_unset() {
    let mut state = State::default();
    state.put_model(SavedModel {
        model: "/m/some.gguf".to_owned(),
        level: Some("sublime".to_owned()),
        budget: Some("1GiB".to_owned()),
        ..SavedModel::default()
    });
    let asked = remembered::of(&state, &model());
    assert_eq!(asked.level, None);
    assert_eq!(asked.budget, Some(Budget::Bytes(1 << 30)));
    // They stay until something else is asked for.
    remember(&mut state, &model(), &PlanOptions::default());
    assert_eq!(state.models[0].level.as_deref(), Some("sublime"));
    remember(&mut state, &model(), &level(Level::Off));
    assert_eq!(state.models[0].level.as_deref(), Some("off"));
    assert_eq!(state.models[0].budget.as_deref(), Some("1GiB"));
}

#[test]
fn the_file_of_models_is_read_again_when_it_has_changed() {
    let world = World::new();
    let settings = world.settings(&[]);
    let system = || settings.table(&model()).system;
    assert_eq!(system(), None);
    world.file("models.toml", "[some]\nsystem = \"Be brief.\"\n");
    assert_eq!(system().as_deref(), Some("Be brief."));
    // By its path, which goes before its name.
    let by_path = "[some]\nsystem = \"a\"\n[\"/m/some.gguf\"]\nsystem = \"Be very brief.\"\n";
    world.file("models.toml", by_path);
    assert_eq!(system().as_deref(), Some("Be very brief."));
    // Half an edit changes nothing, and is told.
    assert_eq!(settings.problem(), None);
    world.file("models.toml", "[some]\nsystm = \"Be brief.\"\n");
    assert_eq!(system().as_deref(), Some("Be very brief."));
    let problem = settings.problem().unwrap();
    assert!(problem.contains("unknown field `systm`"), "{problem}");
    assert!(
        problem.contains("; its previous contents stay in force"),
        "{problem}"
    );
    std::fs::remove_file(world.0.path().join("models.toml")).unwrap();
    assert_eq!((system(), settings.problem()), (None, None));
}

#[test]
fn the_daemon_does_not_start_with_a_file_of_models_that_is_wrong() {
    let world = World::new();
    let problem = |text: &str| {
        world.file("models.toml", text);
        world.config(&[]).unwrap_err()
    };
    let unknown = problem("[some]\ntemprature = 0.5\n");
    assert!(unknown.starts_with("models.toml:2:1: unknown field `temprature`"));
    let hot = problem("[some]\ntemperature = -1\n");
    assert_eq!(
        hot,
        "temperature (from [\"some\"] in models.toml): must be between 0 and 1000, not -1"
    );
    let both = problem("[some]\ngreedy = true\ntemperature = 0.5\n");
    assert!(both.contains(", but greedy draws nothing"), "{both}");
    assert!(problem("[some]\ntop_p = 1.5\n").contains("top_p (from"));
    assert!(problem("[some]\nlevel = \"best\"\n").contains("models.toml:2"));
    assert!(problem("level = \"off\"\n").contains("models.toml:1"));
    // A named configuration has its own beside it.
    std::fs::create_dir(world.0.path().join("named")).unwrap();
    world.file("named/sluiced.toml", "");
    assert!(world.config(&["--config", "named/sluiced.toml"]).is_ok());
    world.file("named/models.toml", "[some]\nx = 1\n");
    assert!(world.config(&["--config", "named/sluiced.toml"]).is_err());
}

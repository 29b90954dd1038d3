//! Makes sure that a model is loaded, and downloads it first if needed.

use std::{fs, path::PathBuf, time::Duration};

use sluice_proto::v1::{
    ListModelsRequest, ListModelsResponse, LoadModelRequest, Model, ModelOrigin, ModelState,
    model_ref::By,
};
use sluice_shared::{names, options::PlanOptions, units};
use tokio::signal::unix::Signal;

use super::{apply, load, pull};
use crate::{
    cli::Pull,
    connection::DaemonConnection,
    output::{Failure, ProgressLine, StandardOutput, dim},
    text::sanitise_line,
};

/// The daemon's reason when a load is refused since another is under way.
const LOAD_IN_PROGRESS: &str = "LOAD_IN_PROGRESS";
/// How often the models are listed while another client's load is under way.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the model once it serves requests, with the given options applied.
pub(super) async fn ensure_loaded(
    daemon: &DaemonConnection,
    subject: &By,
    options: PlanOptions,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let mut progress = ProgressLine::new();
    let mut subject = subject.clone();
    let mut is_downloaded = false;
    loop {
        // Other clients may load, download or remove models meanwhile, so each round begins with the present list.
        let answer = list_all(daemon).await?;
        let models = &answer.models;
        let found = find(models, &subject);
        let state = found.map_or(ModelState::Unspecified, Model::state);
        match (state, found) {
            // A model that was unloaded for being idle is loaded again by the next request.
            (ModelState::Ready | ModelState::Asleep, Some(model)) => {
                progress.clear();
                if !options.is_empty() {
                    apply::plan_options(daemon, options, &model.name, out).await?;
                }
                return Ok(model.clone());
            }
            (ModelState::Loading, _) => {}
            (ModelState::Unspecified | ModelState::Partial | ModelState::Pulling, _)
                if matches!(subject, By::Name(_)) && !is_downloaded =>
            {
                progress.clear();
                let model = download(daemon, &subject, models, interrupts, out).await?;
                // The name at the hub may have a label that the short name left out.
                subject = By::Name(model.name);
                is_downloaded = true;
                continue;
            }
            _ => {
                progress.clear();
                let request = request(&subject, found, options);
                match load::model(daemon, request, false, interrupts, out).await {
                    Err(failure) if failure.reason() == Some(LOAD_IN_PROGRESS) => {}
                    result => return result,
                }
            }
        }
        progress.show(&waiting(&answer));
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = interrupts.recv() => return Err(Failure::interrupted("the load continues")),
        }
    }
}

/// The model that serves, or that the next request loads again.
pub(super) fn loaded(models: &[Model]) -> Option<&Model> {
    let mut models = models.iter();
    models.find(|model| matches!(model.state(), ModelState::Ready | ModelState::Asleep))
}

/// The model that is being loaded.
pub(super) fn loading(models: &[Model]) -> Option<&Model> {
    let mut models = models.iter();
    models.find(|model| model.state() == ModelState::Loading)
}

pub(super) async fn list(daemon: &DaemonConnection) -> Result<Vec<Model>, Failure> {
    Ok(list_all(daemon).await?.models)
}

async fn list_all(daemon: &DaemonConnection) -> Result<ListModelsResponse, Failure> {
    let answer = daemon.models().list_models(ListModelsRequest {}).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    Ok(answer.into_inner())
}

/// The model of the list that a subject names: by path, exact name, name in another case, or short name.
pub(super) fn find<'a>(models: &'a [Model], subject: &By) -> Option<&'a Model> {
    let name = match subject {
        By::Path(path) => {
            let place = real_path(path);
            let mut placed = models.iter().filter(|model| !model.path.is_empty());
            return placed.find(|model| real_path(&model.path) == place);
        }
        By::Name(name) | By::Shape(name) => name,
    };
    let named = |name: &str| {
        let exact = models.iter().find(|model| model.name == name);
        exact.or_else(|| {
            models
                .iter()
                .find(|model| model.name.eq_ignore_ascii_case(name))
        })
    };
    named(name)
        .or_else(|| named(names::full(name)?))
        .or_else(|| {
            let is_meant = |model: &&Model| name == names::DEMONSTRATION && model.is_demonstration;
            models.iter().find(is_meant)
        })
}

/// The path with links resolved; the path itself if it cannot be read from here.
fn real_path(path: &str) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path))
}

/// Downloads a model from the hub, if its name can be one of the hub's.
async fn download(
    daemon: &DaemonConnection,
    subject: &By,
    models: &[Model],
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Model, Failure> {
    let By::Name(name) = subject else {
        return Err(Failure::new("what has a path is not downloaded"));
    };
    let Some(full) = names::full(name).or(name.contains('/').then_some(name.as_str())) else {
        return Err(unknown(name, models));
    };
    if full != name {
        dim(&format!("{} is {full}", sanitise_line(name)));
    }
    let arguments = Pull {
        name: full.to_owned(),
        file: None,
        revision: None,
        json: false,
    };
    let model = pull::model(daemon, &arguments, interrupts, out).await?;
    dim(&format!(
        "downloaded {}, {}",
        sanitise_line(&model.name),
        units::bytes(model.disk_bytes)
    ));
    Ok(model)
}

/// The failure for a name that no model here has and none at the hub can have.
fn unknown(name: &str, models: &[Model]) -> Failure {
    let near = names::near(name, models.iter().map(|model| model.name.as_str()));
    let failure = Failure::new(format!("there is no model {}", sanitise_line(name)));
    failure.with_hint(match near.is_empty() {
        false => format!("did you mean {}?", near.join(", or ")),
        true => "`sluice list` lists the models; OWNER/NAME is downloaded from the hub; for a folder or file, give \
                 its path, such as ./NAME; `sluice run --help` lists short names"
            .to_owned(),
    })
}

fn request(subject: &By, found: Option<&Model>, options: PlanOptions) -> LoadModelRequest {
    let model = match (found, subject) {
        // The daemon may forget names of models loaded by path; the path finds it always.
        (Some(model), _) if model.origin() == ModelOrigin::Path => By::Path(model.path.clone()),
        (Some(model), By::Name(_)) => By::Name(model.name.clone()),
        (_, subject) => subject.clone(),
    };
    LoadModelRequest {
        model: model.into(),
        options: Some(options.into()),
        ..Default::default()
    }
}

/// The progress line of the load that is waited for.
fn waiting(list: &ListModelsResponse) -> String {
    let model = loading(&list.models);
    match model.and_then(|model| Some((model, model.progress_in(&list.operations)?))) {
        Some((model, step)) => format!(
            "waiting: {} is loading, {} of {}",
            model.name,
            units::bytes(step.done),
            units::bytes(step.total.unwrap_or(0))
        ),
        None => "waiting for another load".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(name: &str, path: &str) -> Model {
        Model {
            name: name.into(),
            path: path.into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_model_is_meant_by_its_name_its_short_name_or_its_path() {
        let demonstration = Model {
            is_demonstration: true,
            ..model("sluice-demo", "")
        };
        let models = [
            demonstration,
            model("GSAI-ML/LLaDA-8B-Instruct", "/m/llada"),
            model("mine", "/home/a/mine"),
        ];
        let name = |name: &str| {
            let found = find(&models, &By::Name(name.to_owned()));
            found.map(|model| model.name.clone())
        };
        assert_eq!(name("mine").as_deref(), Some("mine"));
        assert_eq!(name("Mine").as_deref(), Some("mine"));
        assert_eq!(name("llada").as_deref(), Some("GSAI-ML/LLaDA-8B-Instruct"));
        assert_eq!(name("demo").as_deref(), Some("sluice-demo"));
        assert_eq!(name("dream"), None);
        let at = find(&models, &By::Path("/home/a/mine".to_owned()));
        assert_eq!(at.map(|model| model.name.as_str()), Some("mine"));
        assert_eq!(find(&models, &By::Path("/x".to_owned())), None);
    }

    #[test]
    fn a_path_is_the_same_however_it_is_spelled() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let models = [
            model("sluice-demo", ""),
            model("mine", real.to_str().unwrap()),
            model("gone", "/nowhere/gone"),
        ];
        let found = |path: &str| {
            let found = find(&models, &By::Path(path.to_owned()));
            found.map(|model| model.name.clone())
        };
        let real = real.display();
        for path in [
            format!("{real}/"),
            format!("{real}/../real"),
            link.display().to_string(),
        ] {
            assert_eq!(found(&path).as_deref(), Some("mine"), "{path}");
        }
        assert_eq!(found("/nowhere/gone/").as_deref(), Some("gone"));
        assert_eq!(found("/nowhere"), None);
    }

    #[test]
    fn a_name_that_nobody_knows_leads_to_near_ones() {
        let told = |name: &str| format!("{:?}", unknown(name, &[model("o/story-model", "")]));
        assert!(
            told("lada").contains("did you mean llada"),
            "{}",
            told("lada")
        );
        assert!(told("story-modle").contains("o/story-model"));
        assert!(told("zzz").contains("`sluice list`"));
    }
}

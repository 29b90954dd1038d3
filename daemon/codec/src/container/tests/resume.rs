//! Runs that were interrupted anywhere, and what the next one makes of what they left.

use std::{fs, io::Write, os::unix::fs::symlink, sync::atomic::AtomicBool};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// Leaves what a run leaves that stopped after some tensors, within the next one.
fn interrupted(model: &Model, folder: &Folder, tensors: usize, chunks: usize) {
    let mut writer = model.begin(&folder.target());
    for _ in 0..tensors {
        model.write_whole(&mut writer);
    }
    if writer.next().is_some() {
        model.write(&mut writer, chunks);
    }
}

/// Goes on, says how many tensors were whole, and compares the result.
fn resumed(model: &Model, folder: &Folder, expected: &[u8]) -> usize {
    assert!(!folder.target().exists(), "nothing looks finished");
    let writer = model.begin(&folder.target());
    let whole = writer.next().unwrap_or(model.tensors.len());
    model.go_on(writer);
    assert!(folder.only_target() == expected, "the same as in one run");
    whole
}

#[test]
fn a_run_goes_on_where_one_before_it_stopped() {
    let model = Model::new();
    let expected = model.container();
    for tensors in 0..=model.tensors.len() {
        for chunks in 0..2 {
            let folder = Folder::new();
            interrupted(&model, &folder, tensors, chunks);
            assert!(read(&fs::read(partial_of(&folder.target())).unwrap()).is_err());
            assert_eq!(resumed(&model, &folder, &expected), tensors);
        }
    }
}

#[test]
fn a_run_that_was_interrupted_twice_goes_on() {
    let model = Model::new();
    let folder = Folder::new();
    for tensors in [2, 3, 1] {
        let mut writer = model.begin(&folder.target());
        for _ in 0..tensors {
            model.write_whole(&mut writer);
        }
    }
    assert_eq!(resumed(&model, &folder, &model.container()), 6);
}

#[test]
fn a_journal_cut_or_changed_anywhere_is_believed_as_far_as_it_holds() {
    let model = Model::new();
    let expected = model.container();
    let folder = Folder::new();
    interrupted(&model, &folder, 6, 1);
    let journal = fs::read(journal_of(&folder.target())).unwrap();
    let partial = fs::read(partial_of(&folder.target())).unwrap();
    let lines_before = |at: usize| journal[..at].iter().filter(|&&byte| byte == b'\n').count();
    let mut random = Random(3);
    for _ in 0..60 {
        let at = random.below(journal.len());
        for is_cut in [true, false] {
            let folder = Folder::new();
            let mut changed = journal.clone();
            match is_cut {
                true => changed.truncate(at),
                false => changed[at] ^= 1 << random.below(7),
            }
            fs::write(journal_of(&folder.target()), changed).unwrap();
            fs::write(partial_of(&folder.target()), &partial).unwrap();
            // The first line says what the journal is of.
            let whole = lines_before(at).saturating_sub(1);
            assert_eq!(resumed(&model, &folder, &expected), whole);
        }
    }
}

#[test]
fn a_file_that_is_not_what_the_journal_says_is_written_again_from_there() {
    let model = Model::new();
    let expected = model.container();
    let made = read(&expected).unwrap();
    let header = made.header();
    let folder = Folder::new();
    interrupted(&model, &folder, 7, 0);
    let journal = fs::read(journal_of(&folder.target())).unwrap();
    let partial = fs::read(partial_of(&folder.target())).unwrap();
    let mut random = Random(4);
    for _ in 0..60 {
        let index = random.below(7);
        let tensor = &header.tensors[index];
        let at = tensor.offset as usize + random.below(tensor.length as usize);
        for is_cut in [true, false] {
            let folder = Folder::new();
            let mut changed = partial.clone();
            match is_cut {
                true => changed.truncate(at),
                false => changed[at] ^= 1 << random.below(8),
            }
            fs::write(journal_of(&folder.target()), &journal).unwrap();
            fs::write(partial_of(&folder.target()), changed).unwrap();
            assert_eq!(resumed(&model, &folder, &expected), index);
        }
    }
    // None at all, and one longer than all that comes.
    for content in [Vec::new(), vec![7; expected.len() * 2]] {
        let folder = Folder::new();
        fs::write(journal_of(&folder.target()), &journal).unwrap();
        fs::write(partial_of(&folder.target()), content).unwrap();
        assert_eq!(resumed(&model, &folder, &expected), 0);
    }
}

#[test]
fn what_another_run_left_is_not_gone_on_with() {
    let model = Model::new();
    let expected = model.container();
    let folder = Folder::new();
    interrupted(&model, &folder, 4, 1);
    let other = ContainerPlan {
        identity: "that model".to_owned(),
        ..model.plan()
    };
    let writer = ContainerWriter::begin(&folder.target(), other, &GO_ON, &mut |_| {}).unwrap();
    assert_eq!(writer.next(), Some(0));
    drop(writer);
    assert_eq!(resumed(&model, &folder, &expected), 0);

    // A file that isn't a journal counts as none.
    for junk in ["", "\n", "0 1\n", "0000000000000000 {}\n"] {
        interrupted(&model, folder_with(&folder, junk), 0, 0);
        assert_eq!(resumed(&model, folder_with(&folder, junk), &expected), 0);
    }
}

/// The same folder with another journal and no container.
fn folder_with<'a>(folder: &'a Folder, journal: &str) -> &'a Folder {
    drop(fs::remove_file(folder.target()));
    let mut file = fs::File::create(journal_of(&folder.target())).unwrap();
    file.write_all(journal.as_bytes()).unwrap();
    folder
}

#[test]
fn two_runs_do_not_write_the_same_file() {
    let model = Model::new();
    let folder = Folder::new();
    let first = model.begin(&folder.target());
    let second = ContainerWriter::begin(&folder.target(), model.plan(), &GO_ON, &mut |_| {});
    assert!(matches!(second, Err(ContainerError::Busy { .. })));
    model.go_on(first);
    // The finished file is nobody's to write on.
    let expected = folder.only_target();
    drop(model.begin(&folder.target()));
    assert!(fs::read(folder.target()).unwrap() == expected);
}

#[test]
fn taking_up_can_be_cancelled() {
    let model = Model::new();
    let folder = Folder::new();
    interrupted(&model, &folder, 5, 1);
    let cancelled = ContainerWriter::begin(
        &folder.target(),
        model.plan(),
        &AtomicBool::new(true),
        &mut |_| {},
    );
    assert!(matches!(cancelled, Err(ContainerError::Cancelled)));
    assert_eq!(resumed(&model, &folder, &model.container()), 5);
}

#[test]
fn what_no_run_left_is_not_written_to() {
    let model = Model::new();
    let folder = Folder::new();
    let target = folder.target();
    let partial = partial_of(&target);
    let journal = journal_of(&target);
    let begin = || {
        let never = AtomicBool::new(false);
        ContainerWriter::begin(&target, model.plan(), &never, &mut |_| {}).map(drop)
    };
    let other = target.with_file_name("other");
    fs::write(&other, b"precious").unwrap();

    // A file of that name, a link of that name, and one of the journal's; a second name; a pipe.
    fs::write(&partial, b"precious").unwrap();
    let error = begin().unwrap_err().to_string();
    assert!(
        error.contains("it was not left by an interrupted run; move it away"),
        "{error}"
    );
    assert_eq!(fs::read(&partial).unwrap(), b"precious");
    fs::remove_file(&partial).unwrap();
    for name in [&partial, &journal] {
        symlink(&other, name).unwrap();
        begin().unwrap_err();
        fs::remove_file(name).unwrap();
        fs::hard_link(&other, name).unwrap();
        begin().unwrap_err();
        fs::remove_file(name).unwrap();
        mknodat(CWD, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        begin().unwrap_err();
        fs::remove_file(name).unwrap();
        let _ = fs::remove_file(&partial);
    }
    assert_eq!(fs::read(&other).unwrap(), b"precious");
}

#[test]
fn what_could_not_be_read_is_not_begun() {
    let model = Model::new();
    let folder = Folder::new();
    let refusal = |change: &dyn Fn(&mut ContainerPlan)| {
        let mut plan = model.plan();
        change(&mut plan);
        let never = AtomicBool::new(false);
        let begun = ContainerWriter::begin(&folder.target(), plan, &never, &mut |_| {});
        begun.map(drop).unwrap_err().to_string()
    };
    let long = "x".repeat(2000);
    type Change<'a> = &'a dyn Fn(&mut ContainerPlan);
    let changes: [(&str, Change<'_>); 4] = [
        ("is not a valid tensor name", &|plan| {
            plan.tensors[1].name.clone_from(&long);
        }),
        ("17 dimensions", &|plan| plan.tensors[1].shape = vec![1; 17]),
        ("is not a valid file name", &|plan| {
            plan.shards[0].0 = ".hidden.safetensors".to_owned();
        }),
        ("duplicate", &|plan| {
            plan.tensors[0].name = plan.tensors[1].name.clone();
        }),
    ];
    for (problem, change) in changes {
        let found = refusal(change);
        assert!(found.contains(problem), "{found}");
    }
    assert!(!partial_of(&folder.target()).exists());
}

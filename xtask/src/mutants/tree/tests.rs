use super::*;

fn git(root: &Path, arguments: &[&str]) {
    let status = Command::new("git").args(arguments).current_dir(root).status().unwrap();
    assert!(status.success(), "{arguments:?}");
}

#[test]
fn the_copy_follows_the_work_tree() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    git(root, &["init", "--quiet"]);
    fs::create_dir(root.join("src")).unwrap();
    for (name, content) in [(".gitignore", "target\n"), ("src/kept.rs", "one"), ("src/gone.rs", "gone")] {
        fs::write(root.join(name), content).unwrap();
    }
    git(root, &["add", "."]);
    let copy = root.join("target/mutants/tree");
    drop(Tree::of(root).unwrap());
    assert_eq!(fs::read_to_string(copy.join("src/kept.rs")).unwrap(), "one");
    let made = fs::metadata(copy.join("src/kept.rs")).unwrap().modified().unwrap();

    fs::remove_file(root.join("src/gone.rs")).unwrap();
    fs::write(root.join("src/new.rs"), "not added to git yet").unwrap();
    drop(Tree::of(root).unwrap());
    assert!(!copy.join("src/gone.rs").exists());
    assert!(copy.join("src/new.rs").exists());
    assert!(!copy.join("target/mutants").exists());
    assert_eq!(fs::metadata(copy.join("src/kept.rs")).unwrap().modified().unwrap(), made);
}

#[test]
fn a_change_is_taken_out_again() {
    let root = tempfile::tempdir().unwrap();
    git(root.path(), &["init", "--quiet"]);
    fs::write(root.path().join("a.rs"), "one").unwrap();
    let tree = Tree::of(root.path()).unwrap();
    let copy = tree.path().join("a.rs");
    let change = tree.change(Path::new("a.rs"), "two").unwrap();
    assert_eq!(fs::read_to_string(&copy).unwrap(), "two");
    // As after a death: the next run finds it.
    std::mem::forget(change);
    drop(tree);
    let tree = Tree::of(root.path()).unwrap();
    assert_eq!(fs::read_to_string(&copy).unwrap(), "one");
    drop(tree.change(Path::new("a.rs"), "two").unwrap());
    assert_eq!(fs::read_to_string(&copy).unwrap(), "one");
    assert_eq!(fs::read_to_string(root.path().join("a.rs")).unwrap(), "one");
}

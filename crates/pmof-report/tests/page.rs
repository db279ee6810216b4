//! The page in a real browser: headless Chromium opens it, and says what it drew.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use pmof_report::{Document, html};

/// Names under which distributions have it. Debian's first is the one whose windows may be as narrow as a phone.
const BROWSERS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// What the browser may take of the page's own time, in milliseconds: nothing in it waits.
const VIRTUAL_TIME_MS: &str = "4000";

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    BROWSERS.iter().flat_map(|name| places.iter().map(move |place| place.join(name))).find(|file| file.is_file())
}

/// Where screenshots stay to be looked at.
fn artefacts() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-page");
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn page() -> String {
    html(&Document::parse(include_bytes!("golden/report-1.json")).unwrap()).unwrap()
}

/// Opens a page with these options and a profile of its own.
fn open(browser: &Path, page: &str, options: &[&str]) -> Output {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("page.html");
    fs::write(&file, page).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .arg("--enable-logging=stderr")
        .arg(format!("--virtual-time-budget={VIRTUAL_TIME_MS}"))
        .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
        .args(options)
        .arg(format!("file://{}", file.display()))
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What the page wrote to the console: errors of scripts and of the policy among it.
fn console(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect()
}

/// The numbers of an attribute, in the order of the page.
fn numbers(page: &str, attribute: &str) -> Vec<usize> {
    let start = format!("{attribute}=\"");
    page.match_indices(&start)
        .map(|(at, _)| page[at + start.len()..].split('"').next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn every_chart_is_drawn_with_all_its_points() {
    let Some(browser) = browser() else {
        skip_report::skipped!("no Chromium: apt-get install chromium-headless-shell");
        return;
    };
    let page = page();
    for size in ["--window-size=1280,1000", "--window-size=390,844"] {
        let output = open(&browser, &page, &["--dump-dom", size]);
        let said = console(&output);
        assert!(said.is_empty(), "{said:?}");
        let drawn_page = String::from_utf8_lossy(&output.stdout);
        let (points, drawn) = (numbers(&page, "data-points"), numbers(&drawn_page, "data-drawn"));
        assert!(points.len() >= 10 && points.iter().all(|count| *count > 0), "{points:?}");
        assert_eq!(drawn, points, "at {size}");
        assert_eq!(drawn_page.matches("<canvas").count(), points.len());
    }
}

#[test]
fn a_pointer_over_a_chart_shows_its_values() {
    let Some(browser) = browser() else {
        skip_report::skipped!("no Chromium: apt-get install chromium-headless-shell");
        return;
    };
    let pointer = "<script>
        const over = document.querySelector('.u-over'), place = over.getBoundingClientRect();
        const at = { bubbles: true, clientX: place.left + 3, clientY: place.top + 40 };
        for (const kind of ['mouseenter', 'mousemove']) over.dispatchEvent(new MouseEvent(kind, at));
    </script></body>";
    let output = open(&browser, &page().replace("</body>", pointer), &["--dump-dom"]);
    assert!(console(&output).is_empty(), "{:?}", console(&output));
    let drawn_page = String::from_utf8_lossy(&output.stdout);
    let shown: Vec<&str> =
        drawn_page.split("<div class=\"tip\"").skip(1).filter(|tip| tip.contains("display: block")).collect();
    let [tip] = &shown[..] else { panic!("{shown:?}") };
    assert!(tip.contains("block size: 64 B") && tip.contains("floor of tcp") && tip.contains(" µs ("), "{tip}");
}

/// The first test would notice a script that fails.
#[test]
fn a_page_whose_script_fails_is_noticed() {
    let Some(browser) = browser() else {
        skip_report::skipped!("no Chromium: apt-get install chromium-headless-shell");
        return;
    };
    let broken = page().replace("new uPlot(options", "new uPlotless(options");
    let output = open(&browser, &broken, &["--dump-dom"]);
    let said = console(&output);
    assert!(said.iter().any(|line| line.contains("uPlotless")), "{said:?}");
    assert!(numbers(&String::from_utf8_lossy(&output.stdout), "data-drawn").is_empty());
}

#[test]
fn pictures_of_the_page_are_kept() {
    let Some(browser) = browser() else {
        skip_report::skipped!("no Chromium: apt-get install chromium-headless-shell");
        return;
    };
    let page = page();
    for (name, width, height, dark) in
        [("desktop", 1280, 4000, false), ("phone", 390, 4000, false), ("desktop-dark", 1280, 2000, true)]
    {
        let file = artefacts().join(format!("{name}.png"));
        let _ = fs::remove_file(&file);
        let (picture, size) = (format!("--screenshot={}", file.display()), format!("--window-size={width},{height}"));
        let mut options = vec![picture.as_str(), size.as_str()];
        options.extend(dark.then_some("--blink-settings=preferredColorScheme=0"));
        let output = open(&browser, &page, &options);
        assert!(console(&output).is_empty(), "{:?}", console(&output));
        let bytes = fs::read(&file).unwrap();
        // The header of PNG: its signature, then width and height of the first chunk.
        let number = |at: usize| bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        assert_eq!((&bytes[1..4], number(16), number(20)), (&b"PNG"[..], width, height), "{name}");
    }
}

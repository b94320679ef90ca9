//! The images of the three programs, as archives for containerd, Docker, Podman and skopeo. Building them
//! needs no container engine. The chart is archived the same way, for a registry.

pub mod crates;
mod oci;
mod read;
mod sbom;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;

pub use self::oci::{gzip, tar};
use crate::build::{self, Arch, megabytes};
use crate::progress::Step;
use crate::{paths, protoc, run};

/// The registry of the published images, and the namespace in it.
pub const PUBLISHED: [&str; 2] = ["ghcr.io", "quintet-operator"];

/// The maximum compressed size of an image, in bytes.
const LIMIT: u64 = 10_000_000;

struct Recipe {
    program: &'static str,
    package: &'static str,
    description: &'static str,
}

const RECIPES: [Recipe; 3] = [
    Recipe {
        program: "quintet",
        package: "quintet",
        description: "One operator for the kinds of well-known operator tutorials",
    },
    Recipe {
        program: "pulsar-consumer",
        package: "quintet-pulsar-client",
        description: "Prints the messages of an Apache Pulsar topic; runs in the pods of PulsarConsumers",
    },
    Recipe {
        program: "pulsar-producer",
        package: "quintet-pulsar-client",
        description: "Sends messages to an Apache Pulsar topic",
    },
];

/// The name of the image of a program, with its registry and without a tag.
pub fn repository(program: &str) -> String {
    format!("{}/{}/{program}", PUBLISHED[0], PUBLISHED[1])
}

/// The name of the image of a program, with its registry and its tag.
pub fn name(program: &str) -> String {
    format!("{}:{}", repository(program), env!("CARGO_PKG_VERSION"))
}

/// The packages of the programs.
pub fn packages() -> Vec<&'static str> {
    let packages: BTreeSet<&str> = RECIPES.iter().map(|recipe| recipe.package).collect();
    packages.into_iter().collect()
}

/// An image that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The program.
    pub program: &'static str,
    /// The archive.
    pub file: PathBuf,
    /// The software bills of materials, one for each architecture.
    pub bills: Vec<PathBuf>,
    /// The digest in a registry.
    pub digest: String,
    /// For each architecture, the digest of the manifest and the compressed size in bytes.
    pub images: Vec<(Arch, String, u64)>,
}

impl Built {
    /// Fails if another build of the same commit differs.
    pub fn must_equal(&self, other: &Self) -> Result<()> {
        let files = |built: &Self| built.bills.iter().chain([&built.file]).cloned().collect::<Vec<_>>();
        for (one, another) in files(self).iter().zip(&files(other)) {
            ensure!(
                read(one)? == read(another)?,
                "{} and {} differ, but must be equal",
                one.display(),
                another.display()
            );
        }
        Ok(())
    }
}

/// The programs of the images for one architecture, in the order of [`RECIPES`], with their bills of materials.
#[derive(Debug)]
pub struct Programs {
    arch: Arch,
    files: Vec<PathBuf>,
    bills: Vec<Vec<u8>>,
}

impl Programs {
    /// Builds the programs, and shows cargo's progress.
    pub fn build(arch: Arch) -> Result<Self> {
        let mut files = vec![build::release_for(Some(arch))?];
        files.extend(build::pulsar_release_for(Some(arch))?.context(protoc::MISSING)?);
        let created = Source::of_checkout()?.created;
        let bills = RECIPES.iter().map(|recipe| sbom::of(recipe.package, recipe.program, arch, created));
        Ok(Self { arch, files, bills: bills.collect::<Result<_>>()? })
    }

    /// The programs in a folder to which [`Self::copy_to`] copied them, perhaps on another machine.
    pub fn read(arch: Arch, folder: &Path) -> Result<Self> {
        let files = RECIPES.iter().map(|recipe| folder.join(recipe.program)).collect();
        let bills = RECIPES.iter().map(|recipe| read(&folder.join(bill_of(recipe.program))));
        Ok(Self { arch, files, bills: bills.collect::<Result<_>>()? })
    }

    /// Copies the programs and their bills of materials to a folder.
    pub fn copy_to(&self, folder: &Path) -> Result<()> {
        for (recipe, (file, bill)) in RECIPES.iter().zip(self.files.iter().zip(&self.bills)) {
            fs::copy(file, folder.join(recipe.program))
                .and_then(|_| fs::write(folder.join(bill_of(recipe.program)), bill))
                .with_context(|| format!("cannot copy {} to {}", file.display(), folder.display()))?;
        }
        Ok(())
    }
}

fn bill_of(program: &str) -> String {
    format!("{program}.cdx.json")
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Builds the images, by default for this machine's architecture, and writes them to `output`.
pub fn build(arches: &[Arch], output: &Path) -> Result<Vec<Built>> {
    if let Some(missing) = missing(arches)? {
        bail!("{missing}");
    }
    let programs: Vec<Programs> = selected(arches).into_iter().map(Programs::build).collect::<Result<_>>()?;
    write(&programs, output)
}

/// The archive of a chart in the OCI image layout, and the chart's digest in a registry. `metadata` is the content of
/// Chart.yaml, and `package` is the output of `helm package`.
pub fn of_chart(metadata: &Value, package: &[u8]) -> Result<(Vec<u8>, String)> {
    oci::chart(metadata, package, Source::of_checkout()?.created)
}

/// The time of the images, in seconds since 1970: that of the commit, or `SOURCE_DATE_EPOCH`.
pub fn created() -> Result<i64> {
    Ok(Source::of_checkout()?.created.as_second())
}

/// The given architectures, or this machine's.
fn selected(arches: &[Arch]) -> BTreeSet<Arch> {
    if arches.is_empty() { Arch::HOST.into_iter().collect() } else { arches.iter().copied().collect() }
}

/// The missing requirement for [`build()`], with its remedy.
pub fn missing(arches: &[Arch]) -> Result<Option<String>> {
    if protoc::find().is_none() {
        return Ok(Some(format!("cannot build pulsar-consumer and pulsar-producer: {}", protoc::MISSING)));
    }
    if Arch::HOST.is_none() {
        return Ok(Some(
            "images need static programs: build them on Linux with glibc, on x86_64 or aarch64".to_owned(),
        ));
    }
    for arch in selected(arches) {
        if let Some(missing) = arch.missing()? {
            return Ok(Some(missing));
        }
    }
    Ok(None)
}

/// Writes the images of programs to `output`, each for all of the architectures.
pub fn write(programs: &[Programs], output: &Path) -> Result<Vec<Built>> {
    fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    let source = Source::of_checkout()?;
    let version = env!("CARGO_PKG_VERSION");
    let mut built = Vec::new();
    for (number, recipe) in RECIPES.iter().enumerate() {
        let step = Step::start(format!("writing the image of {}", recipe.program));
        let (mut contents, mut bills) = (Vec::new(), Vec::new());
        for Programs { arch, files, bills: written } in programs {
            let file = files.get(number).with_context(|| format!("{} was not built", recipe.program))?;
            ensure!(file.ends_with(recipe.program), "{} is not {}", file.display(), recipe.program);
            contents.push(oci::Program { arch: *arch, bytes: read(file)? });
            let bill = output.join(format!("{}-{version}-{}.cdx.json", recipe.program, arch.name()));
            fs::write(&bill, written.get(number).context("a bill of materials is missing")?)
                .with_context(|| format!("cannot write {}", bill.display()))?;
            bills.push(bill);
        }
        let facts = oci::Facts {
            program: recipe.program,
            name: repository(recipe.program),
            tag: version.to_owned(),
            created: source.created,
            labels: source.labels(recipe),
            links: Vec::new(),
            run: String::new(),
        };
        let archive = oci::archive(&facts, &contents)?;
        let file = output.join(format!("{}-{version}.tar", recipe.program));
        fs::write(&file, &archive.bytes).with_context(|| format!("cannot write {}", file.display()))?;
        let images =
            archive.images.into_iter().map(|image| (image.arch, image.digest, image.compressed)).collect();
        built.push(Built { program: recipe.program, file, bills, digest: archive.digest, images });
        step.done();
    }
    Ok(built)
}

/// The archive of an image with the stand-in program, for this machine's architecture. `name` has a tag.
/// `links` are more names of the program, and `run` is the one that runs by default.
pub(crate) fn of_standin(name: &str, program: &[u8], links: &[String], run: &str) -> Result<Vec<u8>> {
    let arch = Arch::HOST.context("images need static programs: build them on Linux with glibc")?;
    let (name, tag) = name.rsplit_once(':').with_context(|| format!("{name} has no tag"))?;
    let facts = oci::Facts {
        program: build::STANDIN,
        name: name.to_owned(),
        tag: tag.to_owned(),
        created: Timestamp::UNIX_EPOCH,
        labels: Vec::new(),
        links: links.to_vec(),
        run: run.to_owned(),
    };
    Ok(oci::archive(&facts, &[oci::Program { arch, bytes: program.to_vec() }])?.bytes)
}

/// Checks an archive with code that did not write it, and runs its program if this machine can.
pub fn check(image: &Built) -> Result<()> {
    let file = &image.file;
    let bytes = read(file)?;
    let read = read::archive(&bytes).with_context(|| format!("{} is not an image", file.display()))?;
    ensure!(read.digest == image.digest, "{} is {}, expected {}", file.display(), read.digest, image.digest);
    let images =
        read.images.iter().map(|one| (one.architecture.as_str(), one.digest.as_str(), one.compressed));
    let written = image.images.iter().map(|(arch, digest, size)| (arch.name(), digest.as_str(), *size));
    ensure!(images.eq(written), "the images in {} differ from the written ones", file.display());
    for one in &read.images {
        let size = megabytes(one.compressed);
        ensure!(
            one.compressed <= LIMIT,
            "{} has {size} for linux/{}, which is too large",
            read.name,
            one.architecture
        );
        let (program, bytes) = &one.program;
        ensure!(is_static(bytes), "{program} needs a loader, which is not in its image");
        ensure!(
            one.config["config"]["Entrypoint"][0] == format!("/{program}"),
            "{program} is not the entrypoint"
        );
        if Arch::HOST.is_some_and(|host| host.name() == one.architecture) {
            starts(program, bytes)?;
        }
    }
    Ok(())
}

/// Runs a program, which must print its name and version.
pub fn starts(program: &str, bytes: &[u8]) -> Result<()> {
    let version = print_version(program, bytes)?;
    let expected = format!("{program} {}", env!("CARGO_PKG_VERSION"));
    ensure!(version.trim() == expected, "the version is {version:?}, expected {expected:?}");
    Ok(())
}

/// The output of a program's `--version`, run from a copy in an empty folder.
fn print_version(program: &str, bytes: &[u8]) -> Result<String> {
    let folder = env::temp_dir().join(format!("quintet-image-{program}-{}", std::process::id()));
    let file = folder.join(program);
    let version = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&file, bytes))
        .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", file.display()))
        .and_then(|()| run::stdout(Command::new(&file).arg("--version").env_clear()));
    let _ = fs::remove_dir_all(&folder);
    version
}

/// Whether a program has no interpreter. The layout is that of 64-bit little-endian ELF.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: usize = 3;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let bytes = elf.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let headers = || -> Option<bool> {
        let (at, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        let mut types = (0..count).map(|header| number(at + header * size, 4));
        Some(types.all(|kind| kind.is_some_and(|kind| kind != INTERPRETER)))
    };
    elf.starts_with(b"\x7fELF\x02\x01") && headers().unwrap_or_default()
}

#[derive(Clone, Debug)]
struct Source {
    /// The commit, with the suffix `-dirty` if files differ from it.
    revision: Option<String>,
    created: Timestamp,
}

impl Source {
    fn of_checkout() -> Result<Self> {
        let git =
            |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace())).ok();
        let commit = git(&["log", "-1", "--format=%H %ct"]);
        let (revision, time) = match commit.as_deref().and_then(|commit| commit.trim().split_once(' ')) {
            Some((revision, time)) => {
                let changed = git(&["status", "--porcelain"]).is_none_or(|files| !files.trim().is_empty());
                let revision = if changed { format!("{revision}-dirty") } else { revision.to_owned() };
                (Some(revision), time.to_owned())
            }
            None => (None, "0".to_owned()),
        };
        let set = env::var("SOURCE_DATE_EPOCH").ok().filter(|seconds| !seconds.is_empty());
        let seconds = set.unwrap_or(time);
        let created = seconds.parse().ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        let created = created.with_context(|| {
            format!("SOURCE_DATE_EPOCH must be a number of seconds since 1970, got {seconds:?}")
        })?;
        Ok(Self { revision, created })
    }

    fn labels(&self, recipe: &Recipe) -> Vec<(&'static str, String)> {
        let repository = env!("CARGO_PKG_REPOSITORY");
        let mut labels = vec![
            ("title", recipe.program.to_owned()),
            ("description", recipe.description.to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("licenses", env!("CARGO_PKG_LICENSE").to_owned()),
            ("source", repository.to_owned()),
            ("url", repository.to_owned()),
        ];
        labels.extend(self.revision.clone().map(|revision| ("revision", revision)));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_a_program_that_needs_a_loader() {
        // cargo links tests dynamically by default.
        let this = fs::read(env::current_exe().unwrap()).unwrap();
        assert!(!is_static(&this));
        let mut headers = vec![0; 0x40 + 0x38];
        headers[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (headers[0x20], headers[0x36], headers[0x38], headers[0x40]) = (0x40, 0x38, 1, 1);
        assert!(is_static(&headers));
        headers[0x40] = 3;
        assert!(!is_static(&headers));
        assert!(!is_static(b"#!/bin/sh\n"));
    }

    #[test]
    fn labels_images_with_their_origin() {
        let source =
            Source { revision: Some("abc".to_owned()), created: "2026-01-02T03:04:05Z".parse().unwrap() };
        let labels = source.labels(&RECIPES[0]);
        for key in ["title", "description", "version", "licenses", "source", "revision"] {
            assert!(labels.iter().any(|(label, value)| *label == key && !value.is_empty()), "{key}");
        }
    }

    #[test]
    fn other_builders_use_the_required_rust() {
        let rust = env!("CARGO_PKG_RUST_VERSION");
        for (file, words) in [
            ("config/image/Dockerfile", format!("library/rust:{rust}-")),
            (".github/workflows/ci.yaml", format!("rustup toolchain install {rust} ")),
            (".github/workflows/release.yaml", format!("rustup toolchain install {rust} ")),
        ] {
            let text = fs::read_to_string(paths::workspace().join(file)).unwrap();
            assert!(text.contains(&words), "{file} lacks `{words}`");
        }
    }

    #[test]
    fn a_container_engine_builds_labelled_images_from_the_lock_file() {
        let text = fs::read_to_string(paths::workspace().join("config/image/Dockerfile")).unwrap();
        let builds: Vec<_> = text.lines().filter(|line| line.starts_with("RUN cargo ")).collect();
        let are_locked = builds.iter().all(|line| line.starts_with("RUN cargo run --locked "));
        assert!(!builds.is_empty() && are_locked, "{builds:?}");
        for (key, value) in [
            ("source", env!("CARGO_PKG_REPOSITORY")),
            ("licenses", env!("CARGO_PKG_LICENSE")),
            ("version", "$VERSION"),
            ("revision", "$REVISION"),
        ] {
            let label = format!("org.opencontainers.image.{key}={value}");
            assert!(text.split_whitespace().any(|word| word == label), "the Dockerfile lacks {label}");
        }
        // The chart's pods name no user.
        let user = format!("USER {0}:{0}", oci::USER);
        assert!(text.lines().any(|line| line == user), "the Dockerfile lacks {user}");
    }

    #[test]
    fn the_chart_runs_this_image() {
        let read = |path: &str| fs::read_to_string(paths::workspace().join(path)).unwrap();
        let values: serde_json::Value = serde_saphyr::from_str(&read("charts/quintet/values.yaml")).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let image =
            format!("{}/{}", text(&values["image"]["registry"]), text(&values["image"]["repository"]));
        assert_eq!(format!("{image}:{}", env!("CARGO_PKG_VERSION")), name("quintet"));
    }
}
